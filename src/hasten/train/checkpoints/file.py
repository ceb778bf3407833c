"""The format of a checkpoint file, and a snapshot in it: a header of JSON, then plain numbers, as safetensors has it.

The file is laid out before anything is copied: a snapshot is one copy of each tensor to its final place, in memory that
another process can read, and writing it means passing bytes on. Any reader of safetensors reads it; nothing in it can run
code. Source: https://github.com/huggingface/safetensors, section "Format".
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
    """Where a tensor stands.

    Attributes:
        start: Its first byte, counted from the end of the header.
        dtype: Its type.
        shape: Its shape; it is stored in row-major order.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """A file before it is written.

    Attributes:
        header: Its first bytes, padded so that tensors stand on whole cache lines.
        places: Of each tensor, by name.
        num_bytes: Of the whole file.
    """

    header: bytes
    places: Mapping[str, Place] = field(default_factory=dict)
    num_bytes: int = 0


def lay_out(tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> Layout:
    """Plan a file: the same for the same names, types, shapes and `meta`, in whatever order they come.

    Args:
        tensors: By name.
        meta: Plain data, kept in the header as JSON.

    Raises:
        TypeError: A tensor is of a type that the format does not know.
    """
    places: dict[str, Place] = {}
    entries: dict[str, Any] = {"__metadata__": {_META: json.dumps(meta, sort_keys=True, allow_nan=True)}}
    at = 0
    # Wide types first, as safetensors does it: then every tensor is aligned to its own width.
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} is of type {tensor.dtype}, which no checkpoint can hold")
        place = Place(at, tensor.dtype, tuple(tensor.shape))
        places[name] = place
        entries[name] = {
            "dtype": DTYPES[tensor.dtype], "shape": list(place.shape), "data_offsets": [at, at + place.num_bytes]
        }  # fmt: skip
        at += place.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, places, len(header) + at)


def read_layout(start: bytes | bytearray | memoryview, num_bytes: int, where: str) -> tuple[Layout, dict[str, Any]]:
    """The layout and the `meta` of a file.

    Args:
        start: Its first bytes: the whole header at least.
        num_bytes: Its size.
        where: Its name, for messages.

    Raises:
        CorruptError: It is cut, or no such file.
    """
    length = int.from_bytes(bytes(start[:8]), "little")
    if length > min(_LONGEST_HEADER, num_bytes - 8):
        raise CorruptError(f"{where} is no checkpoint, or was cut within its header.")
    try:
        entries = json.loads(bytes(start[8 : 8 + length]))
        meta = json.loads(entries.pop("__metadata__", {}).get(_META, "{}"))
        places = {
            name: Place(int(entry["data_offsets"][0]), _TYPES[entry["dtype"]], tuple(map(int, entry["shape"])))
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{where} is no checkpoint: its header cannot be read ({type(error).__name__}).") from error
    total = 8 + length + max((place.start + place.num_bytes for place in places.values()), default=0)
    if total != num_bytes:
        raise CorruptError(f"{where} has {num_bytes:,} bytes, and its header speaks of {total:,}: it was cut or changed.")
    return Layout(bytes(start[: 8 + length]), places, total), meta


class SnapshotMemory:
    """Memory for one snapshot at a time.

    Attributes:
        handle: The anonymous file, to be handed to a process that writes it out.
    """

    def __init__(self) -> None:
        self.handle = os.memfd_create("hasten-checkpoint")
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
