"""Write rows into a store: in one process, or in several that publish together.

    with StoreWriter("dialogues") as writer:          one process: published if the block ends without an error
        for batch in batches:
            writer.write({"text": [...], "image": array})

    with ShardWriter("dialogues") as part:            one of several processes
        part.write(...)
        done = part.finish()                          plain data to send to the publishing process

NumPy arrays (and tensors) become raw columns, whose rows all have one type and shape. All other values, including arrays of
text, become Arrow columns. Memory use is limited to two blocks for any number of rows.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
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
"""Default size at which a new shard is started: few files, but enough of them to distribute."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Describe what one writer wrote, as plain data that can be sent between processes.

    Attributes:
        folder: Folder of the files until they are published.
        shards: Shards as dictionaries.
        schema: Serialized Arrow schema of the Arrow columns; empty if nothing was written.
        raw: Raw columns as dictionaries.
        block_rows: Number of rows per block.
    """

    folder: str
    shards: list[dict[str, Any]] = field(default_factory=list)
    schema: bytes = b""
    raw: list[dict[str, Any]] = field(default_factory=list)
    block_rows: int = BLOCK_ROWS

    @property
    def num_rows(self) -> int:
        """Return the number of rows written."""
        return sum(shard["num_rows"] for shard in self.shards)


class ShardWriter:
    """Write rows that become visible only when they are published.

    Args:
        path: Folder of the store.
        block_rows: Number of rows per block.
        shard_bytes: Size at which a new shard is started, in bytes.
        columns: Types of the Arrow columns; None uses the types of the first rows.
        folder: Folder to write to, managed by the caller; None creates one that is removed at the end of the `with` block.
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
        """Return the folder of the files until they are published.

        Raises:
            DataError: The writer is used outside its `with` block.
        """
        if self._folder is None:
            raise DataError("a writer can only be used in a `with` block, which closes its files.")
        return self._folder

    def write(self, rows: Rows) -> None:
        """Add rows.

        Args:
            rows: A mapping from column to its values (lists, Arrow arrays, NumPy arrays or tensors `[rows, ...]`), or an
                Arrow table or batch.

        Raises:
            DataError: Columns differ in length, or in name or type from earlier rows.
            OSError: The disk is full or not writable. Nothing was published.
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
        """Write the remaining rows and describe what was written. The `with` block removes files that are not published."""
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
        """Split rows into Arrow and raw columns, as in the first rows."""
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
                    f"these rows do not form a table ({error}): all columns need the same length and a single type."
                ) from error
        repeated = [name for name, count in Counter(table.column_names).items() if count > 1]
        if repeated:
            raise DataError(f"several columns have the name {repeated[0]!r}: rename them, or omit them.")
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
                f"the raw columns changed from {want} to {have}: use the same type and shape for all rows, or pass the "
                f"column as a list, which is stored as an Arrow column."
            )

    def _cast(self, table: pa.Table) -> pa.Table:
        schema = self._schema
        if schema is None or table.schema.equals(schema):
            return table
        missing = sorted(set(schema.names) ^ set(table.column_names))
        if missing:
            raise DataError(f"the columns {missing} are missing in some rows: every row needs all columns.")
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"the type of a column changed: {error}. The first rows had {schema.to_string()!r}.") from error

    def _flush(self, *, whole: bool) -> None:
        """Write the full blocks that are waiting; with `whole`, also the last incomplete one."""
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
    """Write a store in one process. The rows become visible only when the `with` block ends without an error.

    Args:
        path: Folder of the store.
        mode: `create` a new store, `append` to an existing one, or `replace` all its rows in a new version.
        block_rows: Number of rows per block.
        shard_bytes: Size at which a new shard is started, in bytes.
        columns: Types of the Arrow columns; None uses the types of the first rows.
        provenance: What the rows are made from; strings and numbers.

    Raises:
        DataError: The store already exists (`create`).

    Attributes:
        manifest: Manifest of the published version; None before.
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
    """Publish what several writers wrote, in the given order.

    Raises:
        DataError: The parts have different columns, nothing was written, or the store already exists (`create`).
    """
    filled = [part for part in parts if part.shards]
    if not filled:
        raise DataError(f"there are no rows to write to {path}: check whether the source is empty.")
    first = filled[0]
    for part in filled[1:]:
        if (part.schema, part.raw, part.block_rows) != (first.schema, first.raw, first.block_rows):
            raise DataError(
                "two writers wrote different columns: pass the types of the columns to all writers (columns=...)."
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
    """Return True if a column is stored as raw numbers: arrays of numbers are, text and objects are not."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.ndim >= 1


def _decoded(table: pa.Table) -> pa.Table:
    """Remove dictionary encoding, which every block would have to repeat, and metadata."""
    for number, part in enumerate(table.schema):
        if pa.types.is_dictionary(part.type):
            table = table.set_column(number, part.name, table.column(number).cast(part.type.value_type))
    return table.replace_schema_metadata(None)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a small table as one batch whose arrays start at offset 0."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1 and not any(column.offset for column in batches[0].columns):
        return batches[0]
    columns = [pa.concat_arrays([b.column(number) for b in batches]) for number in range(table.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
