"""JSON, one record a line: read by Arrow, and line by line only where a block holds a bad record."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.json

from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, files_under, has_files, spread
from hasten.data.convert.refusals import needed_types, no_records
from hasten.data.convert.typing import record_of, tables_of, types_of

ENDINGS = (".jsonl", ".ndjson")
UNIT_BYTES = 32 * 2**20
_BLOCK_BYTES = 4 * 2**20
_LOOKED_AT = 2_000
"""Records whose fields decide the types of the columns, over several units."""


class Jsonl(Reader):
    """JSON records, one a line."""

    name: ClassVar[str] = "jsonl"
    words: ClassVar[str] = "JSON, one record a line (.jsonl, .ndjson)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its ending."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Ranges of bytes; a line belongs to the range in which it begins."""
        found = []
        for file in files_under(path, ENDINGS):
            size = file.stat().st_size
            for start in range(0, size, UNIT_BYTES):
                end = min(start + UNIT_BYTES, size)
                found.append(Unit(path=str(file), start=start, end=end, num_bytes=end - start))
        return found

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types that hold for records from the start, the middle and the end of the source."""
        looked = spread(units, 4)
        records: list[dict[str, Any]] = []
        for unit in looked:
            for number, (_, line) in enumerate(_lines(unit)):
                if number >= _LOOKED_AT // len(looked):
                    break
                found = _parsed(line)
                if isinstance(found, dict):
                    records.append(found)
        if not records:
            raise no_records(units[0].path, "a line must be one record, {...}")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Records of a range of bytes."""
        schema = needed_types(choices)
        waiting: list[tuple[int, bytes]] = []
        size = 0
        for at, line in _lines(unit):
            waiting.append((at, line))
            size += len(line)
            if size >= _BLOCK_BYTES:
                yield from _read_block(unit.path, waiting, schema, choices)
                waiting, size = [], 0
        if waiting:
            yield from _read_block(unit.path, waiting, schema, choices)


def _lines(unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Lines that begin within the unit, each with the byte at which it does."""
    with Path(unit.path).open("rb", buffering=2**20) as file:
        at = unit.start
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1  # the end of a line that begins before
        while at < unit.end:
            line = file.readline()
            if not line:
                return
            if not line.isspace():
                yield at, line
            at += len(line)


def _read_block(path: str, lines: list[tuple[int, bytes]], schema: pa.Schema, choices: Choices) -> Iterator[Rows | Bad]:
    block = b"".join(line for _, line in lines)
    try:
        table = pyarrow.json.read_json(
            io.BytesIO(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore" if choices.columns else "error"
            ),
        )
        if table.num_rows == len(lines):
            yield table.select(schema.names)
            return
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        table = None  # at least one record of the block is bad; which one, only a look at each can tell
    yield from tables_of(path, [(f"byte {at}", _parsed(line), line) for at, line in lines], schema, choices)


def _parsed(line: bytes) -> dict[str, Any] | str:
    """The record, or in words why there is none."""
    try:
        return record_of(json.loads(line))
    except json.JSONDecodeError as error:
        return f"no JSON: {error.msg} at character {error.pos} of the line"
    except UnicodeDecodeError as error:
        return f"no UTF-8: {error.reason} at byte {error.start} of the line"
