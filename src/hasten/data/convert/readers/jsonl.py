"""Read JSON with one record per line: with Arrow, and line by line only for blocks with bad records."""

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
"""Size of a unit in bytes."""
_BLOCK_BYTES = 4 * 2**20
_INFERRED_RECORDS = 2_000
"""Number of records, from several units, that types are inferred from."""


class Jsonl(Reader):
    """Read JSON records, one per line."""

    name: ClassVar[str] = "jsonl"
    words: ClassVar[str] = "JSON, one record per line (.jsonl, .ndjson)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return ranges of bytes. A line belongs to the range in which it begins."""
        units = []
        for file in files_under(path, ENDINGS):
            size = file.stat().st_size
            for start in range(0, size, UNIT_BYTES):
                end = min(start + UNIT_BYTES, size)
                units.append(Unit(path=str(file), start=start, end=end, num_bytes=end - start))
        return units

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer types from records at the start, in the middle and at the end of the source."""
        sampled = spread(units, 4)
        records: list[dict[str, Any]] = []
        for unit in sampled:
            for number, (_, line) in enumerate(_lines(unit)):
                if number >= _INFERRED_RECORDS // len(sampled):
                    break
                record = _parsed(line)
                if isinstance(record, dict):
                    records.append(record)
        if not records:
            raise no_records(units[0].path, "each line must be one record, {...}")
        return types_of(records, choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the records of a range of bytes."""
        schema = needed_types(choices)
        waiting: list[tuple[int, bytes]] = []
        size = 0
        for offset, line in _lines(unit):
            waiting.append((offset, line))
            size += len(line)
            if size >= _BLOCK_BYTES:
                yield from _read_block(unit.path, waiting, schema, choices)
                waiting, size = [], 0
        if waiting:
            yield from _read_block(unit.path, waiting, schema, choices)


def _lines(unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin within the unit, with their byte offsets."""
    with Path(unit.path).open("rb", buffering=2**20) as file:
        offset = unit.start
        if offset:
            file.seek(offset - 1)
            offset += len(file.readline()) - 1  # skip the end of a line that begins earlier
        while offset < unit.end:
            line = file.readline()
            if not line:
                return
            if not line.isspace():
                yield offset, line
            offset += len(line)


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
        table = None  # at least one record of the block is bad: check them one by one
    yield from tables_of(path, [(f"byte {offset}", _parsed(line), line) for offset, line in lines], schema, choices)


def _parsed(line: bytes) -> dict[str, Any] | str:
    """Return the record of a line, or the reason why it has none."""
    try:
        return record_of(json.loads(line))
    except json.JSONDecodeError as error:
        return f"invalid JSON: {error.msg} at character {error.pos} of the line"
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: {error.reason} at byte {error.start} of the line"
