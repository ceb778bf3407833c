"""Decide the dialect of a CSV file once: its encoding, its delimiter and the names of its columns.

Quotes follow RFC 4180: a field that begins with a quote ends with the next single one. Arrow accepts other text silently, so
files are checked before they are read.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from hasten.core.errors import DataError
from hasten.data.convert.compressed import and_compressed
from hasten.data.convert.contract import Choices
from hasten.data.convert.encoding import encoding_of, utf8_chunks
from hasten.data.convert.refusals import broken, no_records

MAX_FIELD_BYTES = 2**24
"""Size of a quoted field above which its closing quote is taken to be missing."""
_DELIMITERS = (",", "\t", ";", "|")
_OTHERS = {" ": "spaces", ":": "colons", "^": "carets", "~": "tildes", "\x01": "characters of code 1"}
"""Delimiters that are common in text too, so that they must be chosen."""
_MOST = 0.9
"""Share of rows that must have equally many fields."""
_SNIFFED_ROWS = 200
_QUOTED = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"(?!")')
_RETURN = re.compile(rb"\r(?!\n)")
_TWICE = "write each quote within a quoted field twice"


@dataclass(frozen=True)
class Dialect:
    """Describe how a CSV file is read.

    Attributes:
        encoding: Name of the encoding.
        delimiter: Character between two fields.
        names: Names of the columns, from the first row.
        blank_lines: Number of empty lines before it.
    """

    encoding: str
    delimiter: str
    names: tuple[str, ...]
    blank_lines: int


def dialect_of(path: str, choices: Choices) -> Dialect:
    """Return the dialect of a file, as chosen or found in its first rows.

    Raises:
        DataError: The dialect is ambiguous, or the first row does not name each column once.
    """
    encoding = encoding_of(path, choices.encoding)
    chunks = list(islice(utf8_chunks(path, encoding), 2))
    text, is_whole = b"".join(chunks[:1]).decode("utf-8", "replace"), len(chunks) < 2
    delimiter = choices.delimiter or _sniffed(path, text, is_whole=is_whole)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise DataError(f"--delimiter must be a single ASCII character, not {delimiter!r}.")
    rows = _rows(text, delimiter, is_whole=is_whole)
    if not rows:
        raise no_records(path, "the first row must name the columns")
    blank = text[: len(text) - len(text.lstrip("\r\n"))]
    return Dialect(encoding, delimiter, _names(path, rows[0]), len(blank.splitlines()))


def check_rows(path: str, dialect: Dialect) -> None:
    """Check that every quoted field of a file closes and ends there, and that rows end with line breaks of one kind.

    Raises:
        DataError: Arrow would split the file otherwise than it was meant; names the line.
    """
    ends = dialect.delimiter.encode() + b"\r\n"
    chunks = utf8_chunks(path, dialect.encoding)
    text, line, is_last = b"\n" + next(chunks, b""), 0, False  # the first row begins like any other, after a line break
    single_return = _RETURN if b"\n" in text[1:] else None
    at = begin = 1  # where to look for a quote, and where the text outside of quotes begins
    while True:
        start = text.find(b'"', at)
        if start >= 0 and text[start - 1] not in ends:  # within an unquoted field
            at = start + 1
            continue
        end = start if start >= 0 else len(text) - 1
        if single_return and (found := single_return.search(text, begin, end + 1)) and found.start() < end:
            line += text.count(b"\n", 0, found.start())
            raise broken(path, f"line {line} contains a carriage return outside of quotes", "put its field in quotes")
        field = _QUOTED.match(text, start) if start >= 0 else None
        if field is not None and (is_last or field.end() < len(text)):
            if text[field.end() : field.end() + 1] not in ends:
                line += text.count(b"\n", 0, start)
                raise broken(path, f"text follows the closing quote of the field that begins in line {line}", _TWICE)
            at = begin = field.end()
            continue
        if is_last and start < 0:
            return
        if is_last or (start >= 0 and len(text) - start > MAX_FIELD_BYTES):
            line += text.count(b"\n", 0, start)
            raise broken(path, f"the quote that opens in line {line} does not close", _TWICE)
        seen = end - (start >= 0)
        line += text.count(b"\n", 0, seen)
        more = next(chunks, b"")
        text, at, begin, is_last = text[seen:] + more, 1, int(start >= 0), not more


def _sniffed(path: str, text: str, *, is_whole: bool) -> str:
    """Return the delimiter that gives nearly all rows as many fields as the first one."""
    shares = {}
    for delimiter in _DELIMITERS:
        counts = [len(row) for row in _rows(text, delimiter, is_whole=is_whole)]
        if counts and counts[0] > 1:
            shares[delimiter] = counts.count(counts[0]) / len(counts)
    if not shares:  # one column
        _refuse_other(path, text.splitlines()[:_SNIFFED_ROWS])
        return "\t" if path.lower().endswith(and_compressed([".tsv"])) else ","
    best = [delimiter for delimiter, share in shares.items() if share == max(shares.values())]
    if len(best) > 1:
        raise DataError(f"{path} can be split at {' or '.join(map(repr, best))}: choose one (--delimiter).")
    return best[0]


def _refuse_other(path: str, lines: list[str]) -> None:
    """Refuse a file that seems to have several columns, separated by something that is not detected."""
    for delimiter, words in _OTHERS.items():
        counts = [len(line.split(None if delimiter == " " else delimiter)) for line in lines if line.strip()]
        if len(counts) > 1 and counts[0] > 1 and counts.count(counts[0]) >= _MOST * len(counts):
            raise DataError(
                f"{path} seems to have {counts[0]} columns, separated by {words}. If there is a single one between two "
                f"columns, choose it (--delimiter {delimiter!r}). If there is one column, choose --delimiter ','."
            )


def _rows(text: str, delimiter: str, *, is_whole: bool) -> list[list[str]]:
    """Return the first rows that are not empty, without one that may be cut off."""
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if row:
                rows.append(row)
            if len(rows) == _SNIFFED_ROWS:
                return rows
    except csv.Error:  # a very long field, perhaps with an open quote, which `check_rows` finds
        return rows
    return rows if is_whole else rows[:-1]


def _names(path: str, row: list[str]) -> tuple[str, ...]:
    names = [*row]
    if names[0].lower() == "sep=":
        raise broken(path, "the first row is `sep=`, which only Excel understands", "remove that row")
    if len(names) > 1 and not names[0] and "index" not in names:
        names[0] = "index"  # as pandas writes the index of a table
    empty = [number for number, name in enumerate(names, 1) if not name.strip()]
    if empty:
        raise broken(path, f"the first row has no name for column {empty[0]}", "add a name")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise broken(path, f"the first row names the column {name!r} {count} times", "add a row of names if it has none")
    return tuple(names)
