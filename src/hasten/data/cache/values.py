"""A value as bytes and back, with a checksum and without pickle."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa

from hasten.core.records import decode, encode

_RECORD, _TABLE, _BATCH, _ARRAY = b"R", b"T", b"B", b"A"
_HEAD = 5
"""Bytes before the data: the kind, then the checksum (CRC-32) of what follows."""


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
