"""Read JSON with one record per line: with Arrow, and line by line only for blocks with bad records."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from hasten.data.convert.compressed import and_compressed, is_compressed
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, sampled, units_of
from hasten.data.convert.encoding import UTF_8, encoding_of, utf8_chunks
from hasten.data.convert.json_text import MAX_RECORD_BYTES, parsed
from hasten.data.convert.listing import has_files
from hasten.data.convert.refusals import broken, needed_types
from hasten.data.convert.typing import read_records, records_of, types_of

ENDINGS = and_compressed((".jsonl", ".ndjson"))
UNIT_BYTES = 32 * 2**20
"""Size of a unit in bytes."""
_BLOCK_BYTES = 4 * 2**20
_INFERRED_RECORDS = 2_000
"""Number of records, from several units, that types are inferred from."""
_INFERRED_UNITS = 4
_INDENT = re.compile(rb"\n[ \t\r\n]+")
_NO_RECORD = re.compile(rb"\n(?!\{)")
_LONG = re.compile(rb"(?<![.\d])\d{16}")
"""Numbers that a float may round to another whole number."""
_TINY = re.compile(rb"e-\d{3}|E-\d{3}|0000\d{296}")
"""Numbers that a float may round to zero."""
_SIGNS = (b"e-", b"E-", b"0" * 300)
"""Text without which there are no such numbers; it is found faster."""


Block: TypeAlias = "tuple[bytes, Iterator[tuple[str, bytes]]]"
"""Some lines, together and one by one with their positions."""


class Jsonl(Reader):
    """Read JSON records, one per line."""

    name: ClassVar[str] = "jsonl"
    words: ClassVar[str] = "JSON, one record per line (.jsonl, .ndjson; also .gz, .bz2, .xz, .zst)"
    reads_partitions: ClassVar[bool] = True

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return ranges of bytes. A line belongs to the range in which it begins."""

        def parts(file: Path) -> Iterator[Unit]:
            size = file.stat().st_size
            can_split = not _is_decoded(str(file), choices)
            for start in range(0, size, UNIT_BYTES if can_split else max(size, 1)):
                end = min(start + UNIT_BYTES, size) if can_split else size
                yield Unit(path=str(file), start=start, end=end, num_bytes=end - start)

        return units_of(path, ENDINGS, parts)

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer types from records at the start, in the middle and at the end of the source."""
        wanted = -(-_INFERRED_RECORDS // min(len(units), _INFERRED_UNITS))

        def load(unit: Unit) -> list[dict[str, Any]]:
            lines = islice(chain.from_iterable(lines for _, lines in blocks(unit, choices)), wanted)
            return records_of(unit.path, map(parsed, (line for _, line in lines)), "each line must be one record, {...}")

        return types_of(list(chain.from_iterable(sampled(units, load, _INFERRED_UNITS))), choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the records of a range of bytes."""
        schema = needed_types(choices)
        for block, lines in blocks(unit, choices):
            table = _by_arrow(block, schema, choices)
            if table is not None:
                yield table
            else:
                yield from read_records(unit.path, ((position, parsed(line), line) for position, line in lines), choices)


def _is_decoded(path: str, choices: Choices) -> bool:
    """Return True for a file that is read from its start: it is compressed, or not UTF-8."""
    return is_compressed(path) or encoding_of(path, choices.encoding, is_checked=False) != UTF_8


def blocks(unit: Unit, choices: Choices) -> Iterator[Block]:
    """Yield the lines that begin in a unit, together and one by one."""
    if not unit.start and _is_decoded(unit.path, choices):
        yield from _decoded(unit.path, choices)
        return
    with Path(unit.path).open("rb") as file:
        start = unit.start
        while start < unit.end:
            begin = _seek_line(file, start, unit.end)
            block = file.read(max(min(_BLOCK_BYTES, unit.end - begin), 0))
            if not block.endswith(b"\n"):
                block += file.readline(MAX_RECORD_BYTES)
            end = min(begin + len(block), unit.end)
            yield block, _lines(replace(unit, start=start, end=end))
            start = end


def _lines(unit: Unit) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that begin within the unit, with their positions."""
    with Path(unit.path).open("rb", buffering=2**20) as file:
        offset = _seek_line(file, unit.start, unit.end)
        while offset < unit.end:
            line = file.readline(MAX_RECORD_BYTES + 1)
            if not line:
                return
            if not line.isspace():
                yield f"byte {offset}", line
            offset += len(line)
            if not line.endswith(b"\n"):
                offset += _to_line_end(file, unit.end - offset)


def _seek_line(file: BinaryIO, start: int, end: int) -> int:
    """Go to the first line that begins at or after a byte; return where it begins."""
    file.seek(max(start - 1, 0))
    return start + (_to_line_end(file, end - start + 1) - 1 if start else 0)


def _to_line_end(file: BinaryIO, limit: int) -> int:
    """Skip the rest of a line, at least up to a limit; return the number of bytes skipped."""
    skipped = 0
    while skipped < limit and (part := file.readline(_BLOCK_BYTES)):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _decoded(path: str, choices: Choices) -> Iterator[Block]:
    """Yield the lines of a file that is compressed or not UTF-8, as UTF-8."""
    number, rest = 0, b""
    for chunk in utf8_chunks(path, encoding_of(path, choices.encoding, is_checked=False)):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        yield whole, _numbered(whole, number)
        number += whole.count(b"\n") + bool(newline)
        if len(rest) > MAX_RECORD_BYTES:
            raise broken(path, f"line {number + 1} is longer than {MAX_RECORD_BYTES:,} bytes")
    yield rest, _numbered(rest, number)


def _numbered(lines: bytes, number: int) -> Iterator[tuple[str, bytes]]:
    for count, line in enumerate(lines.split(b"\n"), number + 1):
        if line and not line.isspace():
            yield f"line {count}", line + b"\n"


def _by_arrow(block: bytes, schema: pa.Schema, choices: Choices) -> pa.Table | None:
    """Parse lines with Arrow; None if a record is bad, or if Arrow could change a value without an error.

    Arrow does not validate UTF-8, rounds large and tiny numbers, reads `null` as a record of nulls, and with fewer columns
    drops unknown keys of structs.
    """
    block = _INDENT.sub(b"\n", block.strip(b" \t\r\n"))
    if len(block) > MAX_RECORD_BYTES or not all(_is_exact(kind, structs=not choices.columns) for kind in schema.types):
        return None
    if not block.startswith(b"{") or _NO_RECORD.search(block):
        return None
    try:
        block.decode("utf-8")
        table = pyarrow.json.read_json(
            io.BytesIO(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore" if choices.columns else "error"
            ),
        ).select(schema.names)
    except (UnicodeDecodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return None
    if table.num_rows != block.count(b"\n") + 1:
        return None
    columns = [column.combine_chunks() for column in table.columns]
    is_rounded = (_has_floats(columns, _are_large) and _LONG.search(block)) or (
        _has_floats(columns, _are_zero) and any(sign in block for sign in _SIGNS) and _TINY.search(block)
    )
    return None if is_rounded else table


def _is_exact(kind: pa.DataType, *, structs: bool) -> bool:
    """Return True for types that Arrow reads from JSON without changing values."""
    types = pa.types
    if types.is_list(kind):
        return _is_exact(kind.value_type, structs=structs)
    if types.is_struct(kind):
        return structs and all(_is_exact(part.type, structs=structs) for part in kind)
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_float64(kind) or types.is_string(kind))


def _has_floats(arrays: Sequence[pa.Array], are_such: Callable[[pa.Array], pa.Array]) -> bool:
    """Return True if the arrays contain such floats, also in lists and structs."""
    for array in arrays:
        if pa.types.is_floating(array.type):
            found = bool(pc.any(are_such(array)).as_py())
        else:
            is_nested = pa.types.is_list(array.type) or pa.types.is_struct(array.type)
            inner = array.flatten() if is_nested else []
            found = _has_floats([inner] if pa.types.is_list(array.type) else inner, are_such)
        if found:
            return True
    return False


def _are_large(floats: pa.Array) -> pa.Array:
    return pc.greater_equal(pc.abs(floats), 2.0**53)


def _are_zero(floats: pa.Array) -> pa.Array:
    return pc.equal(floats, 0.0)
