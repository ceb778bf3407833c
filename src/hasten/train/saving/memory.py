"""A snapshot in memory that another process can read: the file as it will be, byte for byte, before it is written.

The memory is an anonymous file (memfd_create, Linux 3.17): it has no name that a crash could leave behind, and it is gone
when the last process that holds it is. It is made once and used again, so that a snapshot costs one copy and no new pages.
Where a folder on fast storage is given, the file lies there instead, as nameless as in memory, and takes no memory that the
system could not have back.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hasten.train.saving.layout import Layout, lay_out


class SnapshotMemory:
    """Memory for one snapshot at a time.

    Args:
        stage: A folder on fast storage to hold it; None holds it in memory.

    Raises:
        OSError: The folder cannot be written.

    Attributes:
        handle: The anonymous file, to be handed to a process that writes it out.
    """

    def __init__(self, stage: Path | None = None) -> None:
        self.handle = os.memfd_create("hasten-checkpoint") if stage is None else _nameless(stage)
        self._map: mmap.mmap | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> int:
        """Copy tensors to their places in the file to be; its size in bytes.

        Whoever reads the memory must have finished with what was there before.

        Raises:
            TypeError: A tensor is of a type that no checkpoint can hold.
            OSError: There is not enough memory.
        """
        layout = lay_out(tensors, meta)
        self._make_room(layout.num_bytes)
        start = len(layout.header)
        self._bytes[:start] = torch.frombuffer(bytearray(layout.header), dtype=torch.uint8)
        for name, place in layout.places.items():
            if place.num_bytes:
                part = self._bytes[start + place.start : start + place.start + place.num_bytes]
                part.view(place.dtype).view(place.shape).copy_(tensors[name].detach())
        return layout.num_bytes

    def close(self) -> None:
        """Let the memory go; a process that was handed it keeps it."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
        self._map = None  # unmapped when the last tensor on it is gone

    def _make_room(self, num_bytes: int) -> None:
        if self._map is not None and len(self._map) >= num_bytes:
            return
        self._bytes = torch.empty(0, dtype=torch.uint8)
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self.handle, size)
        os.posix_fallocate(self.handle, 0, size)  # a lack of memory is an error here, and would kill the process later
        self._map = mmap.mmap(self.handle, size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)


def _nameless(folder: Path) -> int:
    """An open file in a folder that no crash leaves behind."""
    handle, name = tempfile.mkstemp(prefix=".hasten-stage-", dir=folder)
    os.unlink(name)  # noqa: PTH108  given as text
    return handle


def views_of(data: Any, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors of a file that lies in memory, without a copy.

    Args:
        data: The whole file: a writable buffer (a private map does).
        layout: Of the file.
    """
    start = len(layout.header)
    found: dict[str, torch.Tensor] = {}
    for name, place in layout.places.items():
        if not place.num_bytes:
            found[name] = torch.empty(place.shape, dtype=place.dtype)
            continue
        flat = torch.frombuffer(data, dtype=torch.uint8, count=place.num_bytes, offset=start + place.start)
        found[name] = flat.view(place.dtype).view(place.shape)
    return found
