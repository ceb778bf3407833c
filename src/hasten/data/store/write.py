"""Write rows into a store: in one process, or in many that publish together.

    with StoreWriter("dialogues") as writer:          one process: published when the block ends without an error
        for batch in batches:
            writer.write({"text": [...], "image": array})

    with ShardWriter("dialogues") as part:            one of many processes
        part.write(...)
        done = part.finish()                          plain data, to be sent to whoever publishes

Columns given as NumPy arrays (or tensors) become raw columns: rows of one type and shape. All others, and arrays of text,
become Arrow columns. Memory stays at two blocks, whatever the number of rows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from hasten.core.errors import DataError
from hasten.data.store.files import ShardFileWriter
from hasten.data.store.layout import BLOCK_ROWS, Manifest, RawColumn, Shard, checked_name, shard_from_dict
from hasten.data.store.publish import Mode, current, exists, publish, writing

Rows: TypeAlias = pa.RecordBatch | pa.Table | Mapping[str, Any]
SHARD_BYTES = 256 * 2**20
"""Bytes after which a new shard is begun, unless told otherwise: few files, and yet enough to share out."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What one writer wrote: plain data that may travel between processes.

    Attributes:
        folder: Where the files lie, until they are published.
        shards: As dictionaries.
        schema: Of the Arrow columns, as Arrow serializes it; empty where nothing was written.
        raw: The raw columns, as dictionaries.
        block_rows: Rows of a block.
    """

    folder: str
    shards: list[dict[str, Any]] = field(default_factory=list)
    schema: bytes = b""
    raw: list[dict[str, Any]] = field(default_factory=list)
    block_rows: int = BLOCK_ROWS

    @property
    def num_rows(self) -> int:
        """Rows written."""
        return sum(shard["num_rows"] for shard in self.shards)


class ShardWriter:
    """Writes rows that nobody sees until somebody publishes them.

    Args:
        path: The store.
        block_rows: Rows of a block.
        shard_bytes: Bytes after which a new shard is begun.
        columns: Types of the Arrow columns; None takes those of the first rows.
        folder: Where to write, for whoever keeps a folder of its own; None makes one that goes with the `with` block.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        block_rows: int = BLOCK_ROWS,
        shard_bytes: int = SHARD_BYTES,
        columns: pa.Schema | None = None,
        folder: Path | None = None,
    ) -> None:
        if block_rows < 8 or block_rows % 8:
            raise DataError(f"block_rows must be a multiple of 8 and at least 8, not {block_rows}.")
        self._path, self._block_rows, self._shard_bytes = Path(path), block_rows, shard_bytes
        self._name = uuid.uuid4().hex[:16]
        self._schema: pa.Schema | None = columns
        self._raw: tuple[RawColumn, ...] | None = None
        self._waiting: list[tuple[pa.Table, dict[str, npt.NDArray[Any]]]] = []
        self._num_waiting = 0
        self._shards: list[Shard] = []
        self._files: dict[str, ShardFileWriter] = {}
        self._rows = 0
        self._stack = ExitStack()
        self._folder = folder

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = self._stack.enter_context(writing(self._path, self._name))
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._stack.close()

    @property
    def folder(self) -> Path:
        """Where the files lie until they are published.

        Raises:
            DataError: The writer is used outside of its `with` block.
        """
        if self._folder is None:
            raise DataError("a writer writes within `with` alone: it must give its files back whatever happens.")
        return self._folder

    def write(self, rows: Rows) -> None:
        """Add rows.

        Args:
            rows: A mapping from column to its values (lists, Arrow arrays, NumPy arrays or tensors `[rows, ...]`), or an
                Arrow table or batch.

        Raises:
            DataError: Columns differ in length, or from those written before.
            OSError: The disk is full or cannot be written; nothing of it was published.
        """
        table, raw = self._split(rows)
        count = table.num_rows if table.num_columns else len(next(iter(raw.values()), ()))
        if not count:
            return
        self._waiting.append((table, raw))
        self._num_waiting += count
        if self._num_waiting >= self._block_rows:
            self._flush(whole=False)

    def finish(self) -> Written:
        """Write what waits, and tell what was written. The files go with the `with` block unless they are published."""
        self._flush(whole=True)
        self._end_shard()
        return Written(
            folder=str(self.folder),
            shards=[asdict(shard) for shard in self._shards],
            schema=self._schema.serialize().to_pybytes() if self._schema is not None else b"",
            raw=[asdict(column) for column in self._raw or ()],
            block_rows=self._block_rows,
        )

    def _split(self, rows: Rows) -> tuple[pa.Table, dict[str, npt.NDArray[Any]]]:
        """The Arrow columns and the raw ones; both as the first rows had them."""
        raw: dict[str, npt.NDArray[Any]] = {}
        if isinstance(rows, (pa.Table, pa.RecordBatch)):
            table = pa.table(rows) if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        else:
            given = {name: values.numpy() if isinstance(values, torch.Tensor) else values for name, values in rows.items()}
            raw = {name: values for name, values in given.items() if _is_raw(values)}
            try:
                table = pa.table({name: values for name, values in given.items() if name not in raw})
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
                raise DataError(
                    f"these rows are no table ({error}): give every column the same length and one type."
                ) from error
        self._check_lengths(table, raw)
        if self._raw is None:
            self._raw = tuple(
                RawColumn(
                    name=checked_name(name), dtype=np.dtype(values.dtype).newbyteorder("=").name, shape=values.shape[1:]
                )
                for name, values in raw.items()
            )
        table = _decoded(table)
        if self._schema is None:
            self._schema = table.schema
        self._check_raw(raw)
        return self._cast(table), raw

    def _check_lengths(self, table: pa.Table, raw: dict[str, npt.NDArray[Any]]) -> None:
        lengths = {
            **({table.column_names[0]: table.num_rows} if table.num_columns else {}),
            **{n: len(v) for n, v in raw.items()},
        }
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns have different numbers of rows: {lengths}.")

    def _check_raw(self, raw: dict[str, npt.NDArray[Any]]) -> None:
        want = {column.name: (column.dtype, column.shape) for column in self._raw or ()}
        have = {name: (values.dtype.newbyteorder("=").name, values.shape[1:]) for name, values in raw.items()}
        if want != have:
            raise DataError(
                f"the raw columns were {want} and are {have} now: make all rows of one type and shape, or give such a "
                f"column "
                f"as a list, which Arrow keeps."
            )

    def _cast(self, table: pa.Table) -> pa.Table:
        schema = self._schema
        if schema is None or table.schema.equals(schema):
            return table
        missing = sorted(set(schema.names) ^ set(table.column_names))
        if missing:
            raise DataError(f"the columns {missing} are in some rows and not in others: give every row all columns.")
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"a column changed its type: {error}. It was {schema.to_string()!r} at first.") from error

    def _flush(self, *, whole: bool) -> None:
        """Write the full blocks that wait; all rows where it is the end."""
        if not self._num_waiting:
            return
        tables = [table for table, _ in self._waiting]
        table = pa.concat_tables(tables).combine_chunks()
        raw = {c.name: np.concatenate([part[c.name] for _, part in self._waiting]) for c in self._raw or ()}
        count = self._num_waiting
        at = 0
        while count - at >= self._block_rows or (whole and at < count):
            end = min(at + self._block_rows, count)
            self._write_block(table.slice(at, end - at), {name: values[at:end] for name, values in raw.items()}, end - at)
            at = end
        rest = (table.slice(at), {name: values[at:].copy() for name, values in raw.items()})
        self._waiting, self._num_waiting = ([rest], count - at) if at < count else ([], 0)

    def _write_block(self, table: pa.Table, raw: dict[str, npt.NDArray[Any]], count: int) -> None:
        if not self._files:
            self._begin_shard()
        if table.num_columns:
            self._files[""].write_block(_one_batch(table))
        for name, values in raw.items():
            self._files[name].write(
                np.ascontiguousarray(values, values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1).data
            )
        self._rows += count
        if sum(file.num_bytes for file in self._files.values()) >= self._shard_bytes:
            self._end_shard()

    def _begin_shard(self) -> None:
        name = f"{self._name}-{len(self._shards):05d}"
        if self._schema is not None and len(self._schema):
            self._files[""] = ShardFileWriter(self.folder / f"{name}.arrow", self._schema)
        for column in self._raw or ():
            self._files[column.name] = ShardFileWriter(self.folder / f"{name}.{column.name}.raw", None)

    def _end_shard(self) -> None:
        if not self._files:
            return
        files = tuple(file.finish(column) for column, file in self._files.items())
        self._shards.append(Shard(name=f"{self._name}-{len(self._shards):05d}", num_rows=self._rows, files=files))
        self._files, self._rows = {}, 0


class StoreWriter:
    """Writes a store in one process: what it wrote is seen when the `with` block ends without an error, and not before.

    Args:
        path: The store.
        mode: `create` a store where none is, `append` to one that is, or `replace` its rows in a new version.
        block_rows: Rows of a block.
        shard_bytes: Bytes after which a new shard is begun.
        columns: Types of the Arrow columns; None takes those of the first rows.
        provenance: What the rows are made from; strings and numbers.

    Raises:
        DataError: A store is there already (`create`).

    Attributes:
        manifest: Of the published version; None before.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "create",
        block_rows: int = BLOCK_ROWS,
        shard_bytes: int = SHARD_BYTES,
        columns: pa.Schema | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        self._path, self._mode, self._provenance = Path(path), mode, provenance or {}
        have = current(self._path)
        if have is not None and mode == "create":
            raise DataError(exists(self._path, have))
        if have is not None and mode == "append":
            block_rows, columns = have.block_rows, have.schema
        self._writer = ShardWriter(path, block_rows=block_rows, shard_bytes=shard_bytes, columns=columns)
        self.manifest: Manifest | None = None

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                done = self._writer.finish()
                self.manifest = publish_written(self._path, [done], mode=self._mode, provenance=self._provenance)
        finally:
            self._writer.__exit__(kind, error, trace)

    def write(self, rows: Rows) -> None:
        """Add rows; see `ShardWriter.write`."""
        self._writer.write(rows)


def publish_written(
    path: str | os.PathLike[str],
    parts: Sequence[Written],
    *,
    mode: Mode = "create",
    provenance: dict[str, Any] | None = None,
) -> Manifest:
    """Make visible what several writers wrote, in the order given.

    Raises:
        DataError: The parts have different columns, nothing was written, or a store stands in the way.
    """
    filled = [part for part in parts if part.shards]
    if not filled:
        raise DataError(f"there is not one row to write to {path}: look whether the source is empty.")
    first = filled[0]
    for part in filled[1:]:
        if (part.schema, part.raw, part.block_rows) != (first.schema, first.raw, first.block_rows):
            raise DataError(
                "two writers wrote different columns: name the columns' types when the writers are made (columns=...)."
            )
    return publish(
        Path(path),
        [shard_from_dict(shard) for part in filled for shard in part.shards],
        folders=[Path(part.folder) for part in filled],
        schema=pa.ipc.read_schema(pa.py_buffer(first.schema)),
        raw=[RawColumn(**{**column, "shape": tuple(column["shape"])}) for column in first.raw],
        block_rows=first.block_rows,
        mode=mode,
        provenance=provenance or {},
    )


def _is_raw(values: Any) -> bool:
    """Whether a column is kept as raw numbers: an array of numbers; text and objects go to Arrow."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.ndim >= 1


def _decoded(table: pa.Table) -> pa.Table:
    """The same without dictionaries, which would have to be found again for every block, and without metadata."""
    for number, part in enumerate(table.schema):
        if pa.types.is_dictionary(part.type):
            table = table.set_column(number, part.name, table.column(number).cast(part.type.value_type))
    return table.replace_schema_metadata(None)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table of few rows as one batch, whose arrays begin at 0."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1 and not any(column.offset for column in batches[0].columns):
        return batches[0]
    columns = [pa.concat_arrays([b.column(number) for b in batches]) for number in range(table.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
