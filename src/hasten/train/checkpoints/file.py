"""The format of a checkpoint file, and snapshots in this format: a JSON header, then raw numbers, as in safetensors.

The file is laid out before anything is copied. A snapshot copies each tensor once, to its final place in memory that another
process can read and write to disk. Any safetensors reader can read the file, and it contains no code.
Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hasten.core.errors import CorruptError

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in DTYPES.items()}
_ALIGNMENT = 64
_LONGEST_HEADER = 2**30
_META = "hasten"


@dataclass(frozen=True)
class Place:
    """The place of a tensor in a file.

    Attributes:
        start: Offset of its first byte from the end of the header.
        dtype: Its dtype.
        shape: Its shape. It is stored in row-major order.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The layout of a file.

    Attributes:
        header: The header, padded so that the tensors start on a cache line.
        places: Name -> place of each tensor.
        num_bytes: Size of the whole file.
    """

    header: bytes
    places: Mapping[str, Place] = field(default_factory=dict)
    num_bytes: int = 0


def lay_out(tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> Layout:
    """Return the layout of a file. It depends on names, dtypes, shapes and `meta`, not on their order.

    Args:
        tensors: Name -> tensor.
        meta: Plain data, stored in the header as JSON.

    Raises:
        TypeError: The format does not support a tensor's dtype.
    """
    places: dict[str, Place] = {}
    entries: dict[str, Any] = {"__metadata__": {_META: json.dumps(meta, sort_keys=True, allow_nan=True)}}
    start = 0
    # Wide dtypes first, as in safetensors, so that every tensor is aligned to its item size.
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} has dtype {tensor.dtype}, which checkpoints do not support")
        place = Place(start, tensor.dtype, tuple(tensor.shape))
        places[name] = place
        entries[name] = {
            "dtype": DTYPES[tensor.dtype], "shape": list(place.shape), "data_offsets": [start, start + place.num_bytes]
        }  # fmt: skip
        start += place.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, places, len(header) + start)


def read_layout(start: bytes | bytearray | memoryview, num_bytes: int, where: str) -> tuple[Layout, dict[str, Any]]:
    """Return the layout and the `meta` of a file.

    Args:
        start: The first bytes of the file, with at least the whole header.
        num_bytes: Size of the file.
        where: Name of the file, for messages.

    Raises:
        CorruptError: The file is truncated, or is not a checkpoint file.
    """
    length = int.from_bytes(bytes(start[:8]), "little")
    if length > min(_LONGEST_HEADER, num_bytes - 8):
        raise CorruptError(f"{where} is not a checkpoint file, or is truncated within its header.")
    try:
        entries = json.loads(bytes(start[8 : 8 + length]))
        meta = json.loads(entries.pop("__metadata__", {}).get(_META, "{}"))
        places = {
            name: Place(int(entry["data_offsets"][0]), _TYPES[entry["dtype"]], tuple(map(int, entry["shape"])))
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{where} is not a checkpoint file: its header is invalid ({type(error).__name__}).") from error
    total = 8 + length + max((place.start + place.num_bytes for place in places.values()), default=0)
    if total != num_bytes:
        raise CorruptError(f"{where} has {num_bytes:,} bytes, but its header says {total:,}: it is truncated or modified.")
    return Layout(bytes(start[: 8 + length]), places, total), meta


class SnapshotMemory:
    """Memory for one snapshot at a time.

    Attributes:
        handle: File descriptor of the anonymous file, for the process that writes it to disk.
    """

    def __init__(self) -> None:
        self.handle = os.memfd_create("hasten-checkpoint")
        self._map: mmap.mmap | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> int:
        """Copy tensors to their places in memory, and return the size of the file in bytes.

        The process that reads the memory must have finished with the previous snapshot.

        Raises:
            TypeError: The format does not support a tensor's dtype.
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
        """Release the memory. A process that received the handle keeps it."""
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
        os.posix_fallocate(self.handle, 0, size)  # raises if memory is short; without it, the process would be killed later
        self._map = mmap.mmap(self.handle, size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)


def views_of(data: Any, layout: Layout) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in memory, without copying.

    Args:
        data: The whole file as a writable buffer, such as a private memory map.
        layout: The layout of the file.
    """
    start = len(layout.header)
    tensors: dict[str, torch.Tensor] = {}
    for name, place in layout.places.items():
        if not place.num_bytes:
            tensors[name] = torch.empty(place.shape, dtype=place.dtype)
            continue
        flat = torch.frombuffer(data, dtype=torch.uint8, count=place.num_bytes, offset=start + place.start)
        tensors[name] = flat.view(place.dtype).view(place.shape)
    return tensors
