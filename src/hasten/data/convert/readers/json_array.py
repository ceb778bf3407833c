"""JSON, one array of records in a file: read through a small window, whatever the size of the file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, files_under, has_files, spread
from hasten.data.convert.refusals import broken, cut, needed_types, no_records
from hasten.data.convert.typing import Found, record_of, tables_of, types_of

ENDINGS = (".json",)
_PART = 2**20
_ROWS = 1024
_LARGEST = 2**28
"""Characters of one record; a longer one is a sign of a file that is no array of records."""
_SPACE = re.compile(r"[ \t\n\r]*")


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
        return [Unit(path=str(file), num_bytes=file.stat().st_size) for file in files_under(path, ENDINGS)]

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types that hold for the first records of some files."""
        records = [
            record
            for unit in spread(units)
            for record in islice((found for _, found in _records(unit.path) if isinstance(found, dict)), 2 * _ROWS)
        ]
        if not records:
            raise no_records(units[0].path, "a file must be [{...}, {...}, ...]")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """The records of a file."""
        schema = needed_types(choices)
        found: list[Found] = []
        for number, item in _records(unit.path):
            found.append((f"record {number}", record_of(item), item))
            if len(found) >= _ROWS:
                yield from tables_of(unit.path, found, schema, choices, _written)
                found = []
        yield from tables_of(unit.path, found, schema, choices, _written)


def _written(item: Any) -> bytes:
    return json.dumps(item).encode("utf-8", "surrogatepass")


def _records(path: str) -> Iterator[tuple[int, Any]]:
    """The items of the array, each with its number.

    Raises:
        DataError: The file is no array, or its JSON breaks off: what follows has no beginning then.
    """
    decode = json.JSONDecoder().raw_decode
    with Path(path).open("rb") as file:
        characters = _Characters(file, path)
        if characters.next() != "[":
            raise DataError(
                f"{path} does not begin with '[': one record a line is a .jsonl file; a single record is no dataset."
            )
        number = 0
        while characters.next(peek=True) != "]":
            while True:
                try:
                    item, end = decode(characters.text, characters.at)
                except json.JSONDecodeError as error:
                    if not characters.more() or len(characters.text) - characters.at > _LARGEST:
                        raise broken(path, f"record {number} is no JSON: {error.msg}") from error
                    continue
                if end == len(characters.text) and characters.more():
                    continue  # a number may go on
                break
            characters.at = end
            yield number, item
            number += 1
            after = characters.next(peek=True)
            if after == ",":
                characters.next()
            elif after != "]":
                raise broken(path, f"after record {number - 1} stands {after!r} instead of ',' or ']'")


class _Characters:
    """The text of a file from a place on, read as far as somebody looks."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._ended = False
        self.text, self.at = "", 0

    def more(self) -> bool:
        """Read on, and forget what is done with; False at the end of the file."""
        if self._ended:
            return False
        # At least as much as is held already: a record of many parts is not decoded anew for each of them.
        part = self._file.read(max(_PART, len(self.text) - self.at))
        self._ended = not part
        try:
            self.text = self.text[self.at :] + self._decoder.decode(part, final=self._ended)
        except UnicodeDecodeError as error:
            raise DataError(f"{self._path} is no UTF-8: {error.reason}. Convert it to UTF-8 first.") from error
        self.at = 0
        return True

    def next(self, *, peek: bool = False) -> str:
        """The next character that is no space; empty at the end of the file."""
        while True:
            found = _SPACE.match(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text):
                character = self.text[self.at]
                self.at += not peek
                return character
            if not self.more():
                raise cut(self._path, "within its array")
