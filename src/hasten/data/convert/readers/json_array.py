"""Read JSON files with one array of records, parsed incrementally by ijson, so files can have any size."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import ijson
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, has_files, spread, whole_files
from hasten.data.convert.refusals import broken, no_records
from hasten.data.convert.typing import read_records, record_of, types_of

ENDINGS = (".json",)
_PARSER = ijson.get_backend("python")
"""The default C parser silently replaces half a surrogate pair with `?` and stops at an integer of more than 64 bits."""
_INFERRED_RECORDS = 2048
"""Number of records per file that types are inferred from."""
_HEAD_BYTES = 4096
"""Number of bytes at the start of a file that must contain the opening bracket."""


class JsonArray(Reader):
    """Read JSON files with one array of records each."""

    name: ClassVar[str] = "json"
    words: ClassVar[str] = "JSON, one array of records per file (.json)"

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
        records = [
            record
            for unit in spread(units)
            for record in islice((item for _, item in _records(unit.path) if isinstance(item, dict)), _INFERRED_RECORDS)
        ]
        if not records:
            raise no_records(units[0].path, "the file must have the form [{...}, {...}, ...]")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the records of a file."""
        numbered = ((f"record {number}", record_of(item), item) for number, item in _records(unit.path))
        yield from read_records(unit.path, numbered, choices, _written)


def _written(item: Any) -> bytes:
    return json.dumps(item).encode("utf-8", "surrogatepass")


def _records(path: str) -> Iterator[tuple[int, Any]]:
    """Yield the items of the array with their numbers.

    Raises:
        DataError: The file is not an array, or its JSON is invalid, so the next record cannot be located.
    """
    with Path(path).open("rb") as file:
        start = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(start)
        if not file.read(_HEAD_BYTES).lstrip().startswith(b"["):
            raise DataError(f"{path} does not start with '[': files with one record per line need the suffix .jsonl.")
        file.seek(start)
        number = -1
        try:
            for number, item in enumerate(_PARSER.items(file, "item", use_float=True)):
                yield number, item
        except ijson.JSONError:  # its message contains part of the file
            place = f" shortly after record {number}" if number >= 0 else ""
            raise broken(path, f"invalid or truncated JSON{place}") from None
