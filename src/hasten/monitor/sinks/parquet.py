"""Windows as a Parquet file in the run's folder, for notebooks and SQL: one row for each metric of each window."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window

_ROWS = 50_000
"""Rows of a group, which are in memory until they are written."""


class Parquet:
    """Writes groups of rows to a temporary file, which gets its name when the run ends: a Parquet file needs its end."""

    card: ClassVar[SinkCard] = SinkCard(
        name="parquet", summary="`windows.parquet` in the run's folder, when the run ends", every_rank=True
    )

    def __init__(self, start: Start, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rank = f"-{start.rank}" if start.rank else ""
        started = f"-from-{start.step}" if start.step else ""  # a resumed run keeps the file of its earlier part
        self._path = folder / f"windows{rank}{started}.parquet"
        self._part = self._path.with_name(f".{self._path.name}.part")
        folder.mkdir(parents=True, exist_ok=True)
        self._schema, self._table = _schema(), pa.Table
        self._writer = pq.ParquetWriter(self._part, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, window: Window) -> None:
        """Keep the rows, and write them once there are many."""
        same = {
            "run": window.start.run, "rank": window.start.rank, "number": window.number, "from_step": window.from_step,
            "to_step": window.to_step, "at": window.at, "seconds": window.seconds,
        }  # fmt: skip
        metrics = window.metrics()
        self._rows += [{**same, "metric": name, "unit": window.unit(name), "value": metrics[name]} for name in metrics]
        if len(self._rows) >= _ROWS:
            self._flush()

    def close(self) -> None:
        """Write the rest, and give the file its name."""
        self._flush()
        self._writer.close()
        self._part.replace(self._path)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self._writer.write_table(self._table.from_pylist(rows, self._schema))


def _schema() -> Any:
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    fields = {
        "run": text, "rank": pa.int32(), "number": pa.int64(), "from_step": pa.int64(), "to_step": pa.int64(),
        "at": pa.float64(), "seconds": pa.float64(), "metric": text, "unit": text, "value": pa.float64(),
    }  # fmt: skip
    return pa.schema(list(fields.items()))
