"""Read WebDataset tar files: consecutive files with the same name before the first dot form a sample."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, has_files, spread, whole_files
from hasten.data.convert.json_text import loads
from hasten.data.convert.refusals import no_records, truncated
from hasten.data.convert.typing import read_records, types_of

ENDINGS = (".tar",)
_INFERRED_SAMPLES = 256
_TEXT = ("txt", "text", "transcript")
_INTEGER = re.compile(rb"\s*[-+]?[0-9]{1,20}\s*")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")


class WebDataset(Reader):
    """Read samples of tar files, with one column per suffix, and `__key__`.

    The suffix determines the content of a column, as in WebDataset's own decoder: `txt` is text, `cls` and similar suffixes
    are integers, `json` is a record, and all others are bytes.
    """

    name: ClassVar[str] = "webdataset"
    words: ClassVar[str] = "WebDataset tar files (.tar)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per tar file."""
        return whole_files(path, ENDINGS)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer types from the first samples of some files."""
        records = [
            sample
            for unit in spread(units)
            for _, sample in islice(_samples(unit.path), _INFERRED_SAMPLES)
            if isinstance(sample, dict)
        ]
        if not records:
            raise no_records(units[0].path, "files with the same name before the first dot form one")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the samples of a tar file."""
        keyed = ((f"sample {key}", sample, b"") for key, sample in _samples(unit.path))
        yield from read_records(unit.path, keyed, choices)


def _samples(path: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the key of each sample, and the sample or the reason why it cannot be used."""
    key, sample, problem = "", dict[str, Any](), ""
    try:
        with tarfile.open(path, "r|") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                this = f"{folder}/{stem}" if folder else stem
                if this != key and key:
                    yield key, problem or sample
                    sample, problem = {}, ""
                key = this
                file = archive.extractfile(member)
                value = _decoded(ending.lower(), file.read() if file else b"")
                if isinstance(value, ValueError):
                    problem = f"{ending}: {value}"
                sample = {"__key__": key, **sample, ending.lower(): value}
            if key:
                yield key, problem or sample
    except (tarfile.TarError, EOFError, OSError) as error:
        raise truncated(path, f"or is not a tar file ({error})") from error


def _decoded(ending: str, data: bytes) -> Any:
    last = ending.rpartition(".")[2]
    try:
        if last in _TEXT:
            return data.decode("utf-8")
        if last in _NUMBERS:
            return int(data) if _INTEGER.fullmatch(data) else ValueError("not an integer")
        if last == "json":
            return loads(data)
    except UnicodeDecodeError:
        return ValueError("invalid UTF-8")
    except ValueError:
        return ValueError("invalid JSON" if last == "json" else "not an integer")
    return data
