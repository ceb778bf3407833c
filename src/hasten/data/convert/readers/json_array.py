"""Read JSON files with one array of records, one record at a time, so files can have any size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hasten.core.errors import BrokenFileError
from hasten.data.convert.compressed import and_compressed
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, sampled, whole_files
from hasten.data.convert.encoding import encoding_of, utf8_chunks
from hasten.data.convert.json_text import MAX_RECORD_BYTES, parsed
from hasten.data.convert.listing import has_files
from hasten.data.convert.refusals import broken
from hasten.data.convert.typing import read_records, records_of, types_of

ENDINGS = and_compressed((".json",))
_INFERRED_RECORDS = 2048
"""Number of records per file that types are inferred from."""
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|'
_OF_ARRAY = re.compile(_STRING + rb'[\[\]{},"]', re.DOTALL)
_OF_RECORD = re.compile(_STRING + rb'[\[\]{}"]', re.DOTALL)
"""What separates records, and what they are nested by. A lone quote is a string that has not ended yet."""


class JsonArray(Reader):
    """Read JSON files with one array of records each."""

    name: ClassVar[str] = "json"
    words: ClassVar[str] = "JSON, one array of records per file (.json; also .gz, .bz2, .xz, .zst)"
    reads_partitions: ClassVar[bool] = True

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return one unit per file, because the start of a record can only be found by reading from the beginning."""
        return whole_files(path, ENDINGS)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer types from the first records of some files."""

        def load(unit: Unit) -> list[dict[str, Any]]:
            texts = islice(_records(unit.path, choices), _INFERRED_RECORDS)
            return records_of(unit.path, map(parsed, texts), "the file must have the form [{...}, {...}, ...]")

        return types_of(list(chain.from_iterable(sampled(units, load))), choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the records of a file."""
        records = enumerate(_records(unit.path, choices))
        numbered = ((f"record {number}", parsed(text), text) for number, text in records)
        yield from read_records(unit.path, numbered, choices)


def _records(path: str, choices: Choices) -> Iterator[bytes]:
    """Yield the text of each item of the array, as UTF-8.

    Raises:
        DataError: The file is not an array, the array does not end, or other text follows it.
    """
    chunks = utf8_chunks(path, encoding_of(path, choices.encoding, is_checked=False))
    text = next(chunks, b"")
    if not text.lstrip().startswith(b"["):
        raise BrokenFileError(
            path, "is not one array [{...}, {...}, ...]: a file with one record per line needs the suffix .jsonl."
        )
    start = at = text.index(b"[") + 1
    line, depth, is_first = 1, 1, True
    while depth:
        token = (_OF_RECORD if depth > 1 else _OF_ARRAY).search(text, at)
        if token is None or token[0] == b'"':
            line += text.count(b"\n", 0, start)
            more = next(chunks, b"")
            at = (token.start() if token else len(text)) - start
            text, start = text[start:] + more, 0
            if not more or len(text) > MAX_RECORD_BYTES:
                line += text.count(b"\n", 0, len(text) - len(text.lstrip()))
                what = "array does not end after" if depth == 1 else "last record does not end; it begins in"
                raise broken(path, f"the {what} line {line}", "remove the rest")
            continue
        at = token.end()
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        if (depth == 1 and token[0] == b",") or not depth:
            if depth or text[start : token.start()].strip() or not is_first:
                yield text[start : token.start()]
            start, is_first = at, False
    line += text.count(b"\n", 0, at)
    for rest in chain([text[at:]], chunks):
        if rest.strip():
            line += rest.count(b"\n", 0, len(rest) - len(rest.lstrip()))
            raise broken(path, f"other text follows the array in line {line}")
        line += rest.count(b"\n")
