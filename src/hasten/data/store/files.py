"""Write one file of a shard: hash it while writing, and flush it to disk before it is used."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.store.layout import PART_BYTES, SHARDS, ShardFile


class ShardFileWriter(io.RawIOBase):
    """Write Arrow blocks or raw bytes to a file.

    Args:
        path: The file, which must not exist.
        schema: Schema of the Arrow blocks; None for raw bytes.

    Attributes:
        path: As given.
        num_bytes: Number of bytes written so far.
    """

    def __init__(self, path: Path, schema: pa.Schema | None) -> None:
        self.path = path
        self.num_bytes = 0
        self._file = path.open("xb", buffering=2**20)
        self._hash = hashlib.sha256()
        self._blocks: list[int] = []
        self._parts: list[int] = []
        self._part, self._in_part = 0, 0
        # No compression, so that blocks can be read in place, without a copy.
        self._arrow = pa.ipc.new_file(pa.PythonFile(self, mode="w"), schema) if schema is not None else None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write raw bytes.

        Raises:
            OSError: The disk is full.
        """
        view = memoryview(data)
        self._file.write(view)
        self._hash.update(view)
        rest = view.cast("B")
        while rest:
            part, rest = rest[: PART_BYTES - self._in_part], rest[PART_BYTES - self._in_part :]
            self._part = zlib.crc32(part, self._part)
            self._in_part += len(part)
            if self._in_part == PART_BYTES:
                self._end_part()
        self.num_bytes += view.nbytes
        return view.nbytes

    def write_block(self, block: pa.RecordBatch) -> None:
        """Write an Arrow block and record its position."""
        if self._arrow is None:
            raise DataError(f"{self.path.name} contains raw rows, not Arrow blocks.")
        self._arrow.write_batch(block)
        # Computed from the end of the block: the first block also writes the file's header.
        self._blocks.append(self.num_bytes - pa.ipc.get_record_batch_size(block))

    def finish(self, column: str) -> ShardFile:
        """Complete the file, flush it to disk, and describe it."""
        ends = [*self._blocks, self.num_bytes] if self._blocks else []
        if self._arrow is not None:
            self._arrow.close()
        if self._in_part:
            self._end_part()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ShardFile(
            path=f"{SHARDS}/{self.path.name}",
            column=column,
            num_bytes=self.num_bytes,
            sha256=self._hash.hexdigest(),
            blocks=tuple(ends),
            parts=tuple(self._parts),
        )

    def _end_part(self) -> None:
        self._parts.append(self._part)
        self._part, self._in_part = 0, 0

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()
        super().close()
