"""Read WebDataset tar files: files with the same path before the first dot of their name form a sample."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hasten.data.convert.contract import Bad, Choices, Note, Reader, ReadPart, Unit, sampled, whole_files
from hasten.data.convert.json_text import loads
from hasten.data.convert.listing import has_files
from hasten.data.convert.reasons import in_words, reason_of, tallied
from hasten.data.convert.refusals import needed_types, no_records
from hasten.data.convert.tar import ENDINGS, Archive, Index, opened
from hasten.data.convert.typing import batches, read_records, types_of

KEY = "__key__"
_INFERRED_SAMPLES = 256
_TEXT = ("txt", "text", "transcript")
_INTEGER = re.compile(rb"\s*[-+]?[0-9]{1,20}\s*")
_PADDED = re.compile(rb"\s*[-+]?0[0-9]")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")


class WebDataset(Reader):
    """Read samples of tar files, with one column per suffix, and `__key__`.

    The suffix determines the content of a column, as in WebDataset's own decoder: `txt` is text, `cls` and similar suffixes
    are integers, `json` is a record, and all others are bytes.
    """

    name: ClassVar[str] = "webdataset"
    words: ClassVar[str] = "WebDataset tar files (.tar, .tar.gz, .tgz, .tar.bz2, .tar.xz, .tar.zst)"

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

        def load(unit: Unit) -> list[dict[str, Any]]:
            with opened(unit.path) as archive:
                index = archive.index(_INFERRED_SAMPLES)
                some = next(batches(_found(archive, index)), [])
            records = [record for _, record, _ in some if isinstance(record, dict)]
            if not records:
                reasons = in_words(tallied((reason, 1) for _, reason, _ in some if isinstance(reason, str)))
                why = reasons or index.problem or "files with the same name before the first dot form one"
                raise no_records(
                    unit.path, "; ".join([why, *(f"{words}: {count:,}" for words, count in index.notes.items())])
                )
            return records

        return types_of(list(chain.from_iterable(sampled(units, load))), choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[ReadPart]:
        """Return the samples of a tar file."""
        names = needed_types(choices).names
        with opened(unit.path) as archive:
            index = archive.index()
            yield from read_records(unit.path, _found(archive, index), choices)
        for words, count in index.notes.items():
            yield Note(words, count)
        good = [sample for sample in index.samples if not sample.problem]
        for name in names:
            lacking = sum(name not in sample.members for sample in good)
            if name != KEY and lacking:
                yield Note(f"samples without {name}", lacking)
        if index.problem:
            yield Bad(unit.path, f"after {len(index.samples):,} samples", index.problem, is_rest=True)


def _found(archive: Archive, index: Index) -> Iterator[tuple[str, dict[str, Any] | str, bytes]]:
    """Yield each sample with its position, or the reason why it cannot be used."""
    for sample in index.samples:
        record: dict[str, Any] | str
        try:
            record = {KEY: sample.key}
            for ending, data in archive.read(sample):
                record[ending] = value = _decoded(ending, data)
                if isinstance(value, int) and _PADDED.match(data):
                    index.notes[f"WARNING: numbers in {ending} files with leading zeros, which are not kept"] += 1
        except Exception as error:  # noqa: BLE001  if one sample fails, the others can be read
            record = reason_of(error)
        yield f"sample {sample.key}", record, b""


def _decoded(ending: str, data: bytes) -> Any:
    """Decode a file by its ending.

    Raises:
        ValueError: The file does not contain what its ending says; says why.
    """
    last = ending.rpartition(".")[2]
    try:
        if last in _TEXT:
            return data.decode("utf-8")
        if last == "json":
            return loads(data)
    except ValueError as error:
        what = "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else f"invalid JSON: {getattr(error, 'msg', error)}"
        raise ValueError(f"{ending}: {what}") from error
    if last in _NUMBERS:
        if not _INTEGER.fullmatch(data):
            raise ValueError(f"{ending}: not an integer")
        return int(data)
    if not data:
        raise ValueError(f"{ending}: the file is empty")
    return data
