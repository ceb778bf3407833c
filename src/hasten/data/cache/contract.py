"""Define the cache interface: values stored under keys that cover everything they depend on, so none can be stale."""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa

from hasten.core.records import decode, encode

_RECORD, _TABLE, _BATCH, _ARRAY = b"R", b"T", b"B", b"A"
_HEAD = 5
"""Size of the header in bytes: one byte for the kind, then the CRC-32 of the data that follows."""


class Missing:
    """Mark a key without a value. None is a valid value, so it cannot be used for this."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(kw_only=True)
class CacheStats:
    """Count the operations of a cache in this process.

    Attributes:
        hits: Number of values found.
        misses: Number of values not found.
        puts: Number of values stored.
        refused: Number of values not stored, because the cache was full or the value is not plain data.
        damaged: Number of values whose checksum did not match. They also count as misses.
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    refused: int = 0
    damaged: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


class Cache(ABC):
    """Store values under keys. Safe for use by several threads.

    A value is plain data: numbers, strings, arrays, tensors, Arrow tables, and dicts, lists and tuples of them. Nothing is
    pickled, so a cache that other users can write to cannot run code in this process.

    Attributes:
        stats: Counts of the operations in this process.
    """

    stats: CacheStats

    def __init__(self) -> None:
        self.stats = CacheStats()
        self._counting = threading.Lock()

    def get(self, key: str) -> Any:
        """Return a new copy of the value, or `MISSING`."""
        return self.get_many([key])[0]

    def put(self, key: str, value: Any) -> bool:
        """Store a value. Return False if the cache is full or the value is not plain data."""
        return self.put_many({key: value}) == 1

    def get_many(self, keys: Sequence[str]) -> list[Any]:
        """Return new copies of the values of several keys, with `MISSING` for keys without a value."""
        values: list[Any] = []
        damaged = 0
        for data in self.read(keys):
            value = MISSING if data is None else unpack(data, MISSING)
            damaged += data is not None and value is MISSING
            values.append(value)
        misses = sum(value is MISSING for value in values)
        self.count(hits=len(values) - misses, misses=misses, damaged=damaged)
        return values

    def put_many(self, values: Mapping[str, Any]) -> int:
        """Store several values and return how many were stored."""
        packed: dict[str, bytes] = {}
        for key, value in values.items():
            try:
                packed[key] = pack(value)
            except TypeError:  # not plain data: it is recomputed each time, which is correct but slow
                continue
        stored = self.write(packed) if packed else 0
        self.count(puts=stored, refused=len(values) - stored)
        return stored

    def count(self, **amounts: int) -> None:
        """Add the given amounts to the statistics."""
        with self._counting:
            for name, amount in amounts.items():
                setattr(self.stats, name, getattr(self.stats, name) + amount)

    @abstractmethod
    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """Return the bytes stored under each key, as written. None for a key without a value."""

    @abstractmethod
    def write(self, values: Mapping[str, bytes]) -> int:
        """Store bytes under keys and return how many entries were stored."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of stored values."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Return the size of the values in bytes."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all values."""

    def close(self) -> None:  # noqa: B027  most backends keep nothing open
        """Close files and connections. They are reopened if the cache is used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(value: Any) -> bytes:
    """Serialize a value.

    Raises:
        TypeError: The value is not plain data; the message names the type.
    """
    kind, data = _packed(value)
    return kind + zlib.crc32(data).to_bytes(4, "little") + data


def unpack(data: bytes | memoryview, otherwise: Any) -> Any:
    """Deserialize a value. Return `otherwise` if the bytes are damaged."""
    view = memoryview(data)
    kind, checksum, body = bytes(view[:1]), bytes(view[1:_HEAD]), view[_HEAD:]
    if len(checksum) != 4 or zlib.crc32(body).to_bytes(4, "little") != checksum:
        return otherwise
    if kind == _RECORD:
        return decode(bytearray(body))
    if kind not in {_TABLE, _BATCH, _ARRAY}:
        return otherwise
    with pa.ipc.open_stream(pa.py_buffer(bytes(body))) as stream:
        table = stream.read_all()
    if kind == _TABLE:
        return table
    batch = table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)
    return batch if kind == _BATCH else batch.column(0)


def _packed(value: Any) -> tuple[bytes, bytes]:
    if isinstance(value, pa.Table):
        return _TABLE, _ipc(value)
    if isinstance(value, pa.RecordBatch):
        return _BATCH, _ipc(pa.Table.from_batches([value]))
    if isinstance(value, pa.Array):
        return _ARRAY, _ipc(pa.table({"value": value}))
    return _RECORD, encode(value)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
