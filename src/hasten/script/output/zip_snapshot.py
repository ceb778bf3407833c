"""Keep the output of `torch.save` in memory, in an object that torch fills instead of its zip file."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

from hasten.train.snapshot import StorageBuffers

Record = tuple[str, Any, int]
"""Name, content (None: reserve the space only), and size in bytes."""


class ZipSnapshot:
    """Replaces the opened zip file in one `torch.save`.

    For unknown requests, or if memory is short, the file itself is written instead.

    Args:
        buffers: Buffers for the copies.
        plain: Opens the file itself, as torch does.
        keep: Called with the snapshot when it is complete.
        temporary: The temporary file created for it. Removed if it is not needed.
    """

    def __init__(
        self, buffers: StorageBuffers, *, plain: Callable[[], Any], keep: Callable[[ZipSnapshot], None], temporary: str
    ) -> None:
        self.num_bytes = 0
        self._records: list[Record] = []
        self._copies: list[torch.UntypedStorage] = []
        self._buffers, self._plain, self._keep, self._temporary = buffers, plain, keep, temporary
        self._opener: Any = None
        self._file: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        if self._file is not None:
            return self._opener.__exit__(kind, error, trace)
        if kind is None:
            try:
                self._keep(self)
            except Exception:
                os.unlink(self._temporary)  # noqa: PTH108 - torch takes strings
                raise
        else:
            os.unlink(self._temporary)  # noqa: PTH108 - as above
        return None

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the zip file itself."""
        return getattr(self._written_plainly(), name)

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Keep a record. Memory owned by others is copied."""
        if self._file is None:
            try:
                self._records.append((name, self._kept(data), size))
            except (RuntimeError, TypeError):
                self._written_plainly()
            else:
                self.num_bytes += size
                return
        self._file.write_record(name, data, size)

    def write_record_metadata(self, name: str, size: int) -> None:
        """Keep the size of a record that is left empty."""
        if self._file is None:
            self._records.append((name, None, size))
        else:
            self._file.write_record_metadata(name, size)

    def write(self, opening: Callable[[str], Any], name: str) -> None:
        """Write all records to a file that `opening` opens."""
        with opening(name) as file:
            for record in self._records:
                _write(file, record)

    def release(self) -> None:
        """Return the buffers."""
        self._records.clear()
        self._buffers.put_back(self._copies)
        self._copies = []

    def _kept(self, data: Any) -> Any:
        if isinstance(data, bytes | str):
            return data
        if not isinstance(data, torch.UntypedStorage) or data.device.type != "cpu":
            raise TypeError(f"cannot keep a record of class {type(data).__name__}")
        copied = self._buffers.copy(data)
        self._copies.append(copied)
        return copied

    def _written_plainly(self) -> Any:
        """Return the file itself, containing all records so far."""
        if self._file is None:
            os.unlink(self._temporary)  # noqa: PTH108 - as above
            self._opener = self._plain()
            self._file = self._opener.__enter__()
            for record in self._records:
                _write(self._file, record)
            self.release()
        return self._file


def _write(file: Any, record: Record) -> None:
    name, data, size = record
    if data is None:
        file.write_record_metadata(name, size)
    else:
        file.write_record(name, data, size)
