"""What a cache is: values under keys that say all they depend on, so that a stale value can never be asked for."""

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
"""Bytes before the data: the kind, then the checksum (CRC-32) of what follows."""


class Missing:
    """The answer where a cache holds nothing: None may be a value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(kw_only=True)
class CacheStats:
    """What was asked of a cache in this process.

    Attributes:
        hits: Values found.
        misses: Values not found.
        puts: Values kept.
        refused: Values not kept: no room, or no plain data.
        damaged: Values found whose checksum did not hold; they count as misses.
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    refused: int = 0
    damaged: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


class Cache(ABC):
    """Values under keys. Safe for several threads.

    A value is plain data: numbers, strings, arrays, tensors, Arrow tables, and dicts, lists and tuples of them. Nothing is
    pickled, so that a cache that others can write to cannot run anything here.

    Attributes:
        stats: What was asked of it in this process.
    """

    stats: CacheStats

    def __init__(self) -> None:
        self.stats = CacheStats()
        self._counting = threading.Lock()

    def get(self, key: str) -> Any:
        """A new copy of the value, or `MISSING`."""
        return self.get_many([key])[0]

    def put(self, key: str, value: Any) -> bool:
        """Keep a value; False where that is impossible (no room, no plain data)."""
        return self.put_many({key: value}) == 1

    def get_many(self, keys: Sequence[str]) -> list[Any]:
        """New copies of the values of several keys, `MISSING` in place of those that are not there."""
        found: list[Any] = []
        damaged = 0
        for data in self.read(keys):
            value = MISSING if data is None else unpack(data, MISSING)
            damaged += data is not None and value is MISSING
            found.append(value)
        misses = sum(value is MISSING for value in found)
        self.count(hits=len(found) - misses, misses=misses, damaged=damaged)
        return found

    def put_many(self, values: Mapping[str, Any]) -> int:
        """Keep several values; how many were kept."""
        packed: dict[str, bytes] = {}
        for key, value in values.items():
            try:
                packed[key] = pack(value)
            except TypeError:  # no plain data: it is computed anew each time, which is right, only slow
                continue
        kept = self.write(packed) if packed else 0
        self.count(puts=kept, refused=len(values) - kept)
        return kept

    def count(self, **amounts: int) -> None:
        """Add to the statistics."""
        with self._counting:
            for name, amount in amounts.items():
                setattr(self.stats, name, getattr(self.stats, name) + amount)

    @abstractmethod
    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """What is kept under the keys, as it was written."""

    @abstractmethod
    def write(self, values: Mapping[str, bytes]) -> int:
        """Keep bytes under keys; how many of them were kept."""

    @abstractmethod
    def __len__(self) -> int:
        """Values that are kept."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes that the values take."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    def close(self) -> None:  # noqa: B027  most homes hold nothing open
        """Let files and connections go. The cache can be used again, and opens them anew then."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(value: Any) -> bytes:
    """The bytes of a value.

    Raises:
        TypeError: It is no plain data; says what.
    """
    kind, data = _packed(value)
    return kind + zlib.crc32(data).to_bytes(4, "little") + data


def unpack(data: bytes | memoryview, otherwise: Any) -> Any:
    """The value of bytes, or `otherwise` where they are not what was packed."""
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
