"""WebDataset: tar files in which the files of a sample follow one another and share the name before the first dot."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, has_files, spread, whole_files
from hasten.data.convert.refusals import cut, no_records
from hasten.data.convert.typing import read_records, types_of

ENDINGS = (".tar",)
_FIRST = 256
_TEXT = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")


class WebDataset(Reader):
    """Samples of tar files: a column an ending, and `__key__`.

    Endings decide what a column holds, as WebDataset's own decoder has it: `txt` text, `cls` and its like whole numbers,
    `json` records, anything else bytes.
    """

    name: ClassVar[str] = "webdataset"
    words: ClassVar[str] = "WebDataset tar files (.tar)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its ending."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """A tar file each."""
        return whole_files(path, ENDINGS)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types that hold for the first samples of some files."""
        records = [
            found for unit in spread(units) for _, found in islice(_samples(unit.path), _FIRST) if isinstance(found, dict)
        ]
        if not records:
            raise no_records(units[0].path, "files that share the name before the first dot are one")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """The samples of a tar file."""
        found = ((f"sample {key}", sample, b"") for key, sample in _samples(unit.path))
        yield from read_records(unit.path, found, choices)


def _samples(path: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Each sample with its key; in words why it is none."""
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
        raise cut(path, f"or is no tar file ({error})") from error


def _decoded(ending: str, data: bytes) -> Any:
    last = ending.rpartition(".")[2]
    try:
        if last in _TEXT:
            return data.decode("utf-8")
        if last in _NUMBERS:
            return int(data)
        if last == "json":
            return json.loads(data)
    except UnicodeDecodeError:
        return ValueError("no UTF-8")
    except ValueError:
        return ValueError("no JSON" if last == "json" else "no whole number")
    return data
