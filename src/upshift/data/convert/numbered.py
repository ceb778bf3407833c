"""Readers of folders whose own library gives samples by number."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from upshift.core.errors import DataError
from upshift.data.convert.contract import Bad, Choices, Reader, Rows, Unit
from upshift.data.convert.typing import table_of, types_of

_UNIT_ROWS = 8192
_ROWS = 512


class Numbered(Reader):
    """Samples by number: records come as their columns, anything else as the column `data`."""

    @classmethod
    @abstractmethod
    def count(cls, path: Path) -> int:
        """Samples of a folder."""

    @classmethod
    @abstractmethod
    def open(cls, path: str) -> Any:
        """The folder, to take samples by number from.

        Raises:
            MachineError: Its library is not installed.
        """

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Some thousand samples each."""
        rows = cls.count(path)
        return [
            Unit(path=str(path), start=at, end=min(at + _UNIT_ROWS, rows), num_bytes=min(_UNIT_ROWS, rows - at))
            for at in range(0, rows, _UNIT_ROWS)
        ]

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types that hold for the first samples."""
        dataset = cls.open(units[0].path)
        return types_of([_record(dataset[row]) for row in range(min(_ROWS, units[0].end))], choices)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Samples by number."""
        schema = choices.arrow_schema
        if schema is None:
            raise DataError("samples need the types of their columns: give choices the schema the reader found.")
        dataset = cls.open(unit.path)
        for at in range(unit.start, unit.end, _ROWS):
            records = [_record(dataset[row]) for row in range(at, min(at + _ROWS, unit.end))]
            table = table_of(records, schema, choices)
            if isinstance(table, str):
                raise DataError(f"{unit.path}, samples from {at}: {table}.")
            yield table


def index_of(path: Path) -> dict[str, Any]:
    """What `index.json` of a folder holds; nothing where there is none."""
    try:
        read: Any = json.loads((path / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _record(sample: Any) -> dict[str, Any]:
    """A sample as plain values by name."""
    named = sample if isinstance(sample, dict) else {"data": sample}
    return {str(name): value.tolist() if hasattr(value, "tolist") else value for name, value in named.items()}
