"""JSON, one array of records in a file: parsed by ijson as it is read, whatever the size of the file."""

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
_LOOKED_AT = 2048
"""Records of a file whose types are looked at."""
_HEAD_BYTES = 4096
"""Of a file, in which its first bracket must stand."""


class JsonArray(Reader):
    """JSON records in one array a file."""

    name: ClassVar[str] = "json"
    words: ClassVar[str] = "JSON, one array of records a file (.json)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its ending, and its first character where it is one file."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """A file each: where a record begins, only a reading from the start can tell."""
        return whole_files(path, ENDINGS)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types that hold for the first records of some files."""
        records = [
            record
            for unit in spread(units)
            for record in islice((found for _, found in _records(unit.path) if isinstance(found, dict)), _LOOKED_AT)
        ]
        if not records:
            raise no_records(units[0].path, "a file must be [{...}, {...}, ...]")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """The records of a file."""
        found = ((f"record {number}", record_of(item), item) for number, item in _records(unit.path))
        yield from read_records(unit.path, found, choices, _written)


def _written(item: Any) -> bytes:
    return json.dumps(item).encode("utf-8", "surrogatepass")


def _records(path: str) -> Iterator[tuple[int, Any]]:
    """The items of the array, each with its number.

    Raises:
        DataError: The file is no array, or its JSON is broken: nobody knows where the next record begins.
    """
    with Path(path).open("rb") as file:
        start = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(start)
        if not file.read(_HEAD_BYTES).lstrip().startswith(b"["):
            raise DataError(
                f"{path} does not begin with '[': one record a line is a .jsonl file; a single record is no dataset."
            )
        file.seek(start)
        number = -1
        try:
            for number, item in enumerate(_PARSER.items(file, "item", use_float=True)):
                yield number, item
        except ijson.JSONError:  # its message quotes the file
            place = f" soon after record {number}" if number >= 0 else ""
            raise broken(path, f"its JSON is broken or cut off{place}") from None
