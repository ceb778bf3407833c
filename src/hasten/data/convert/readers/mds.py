"""Folders of MDS shards, as MosaicML Streaming's `MDSWriter` writes them, read without that library.

Source of the format: mosaicml-streaming, streaming/base/format/mds/encodings.py, version 2 of its index. A shard may hold
pickles, which could run anything: such a column is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hasten.core.errors import DataError
from hasten.data.convert.chunks import Chunked, Decode, array_of, chunk_unit, index_of, samples_of
from hasten.data.convert.contract import Unit

_VERSION = 2
_SCALARS = frozenset({
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
})  # fmt: skip
_ARRAY_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


class Mds(Chunked):
    """A folder of MDS shards: its columns, images as the bytes of their files."""

    name: ClassVar[str] = "mds"
    words: ClassVar[str] = "a folder of MDS shards by MosaicML Streaming (index.json with shards)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its index."""
        return "shards" in index_of(path)

    @classmethod
    def chunks(cls, path: Path) -> Sequence[Unit]:
        """A unit a shard; the compressed file where the plain one is not there, as the library itself keeps them."""
        return [chunk_unit(path, _file(path, shard)) for shard in _shards(path)]

    @classmethod
    def open(cls, path: Path) -> Callable[[str], Iterator[tuple[memoryview, dict[str, Any] | str]]]:
        """What reads a shard."""
        shards = _shards(path)

        def read(file: str) -> Iterator[tuple[memoryview, dict[str, Any] | str]]:
            shard = next(shard for shard in shards if Path(file).name in _names(shard))
            names = shard["column_names"]
            sizes = [size or None for size in shard["column_sizes"]]
            decodes = [decoder(encoding, file) for encoding in shard["column_encodings"]]
            packed = Path(file).name != _names(shard)[0]
            compression = str(shard["compression"]).partition(":")[0] if packed else ""
            size = int(shard["raw_data"]["bytes"])
            for data, values in samples_of(file, compression, size, list(zip(sizes, decodes, strict=True))):
                yield data, values if isinstance(values, str) else dict(zip(names, values, strict=True))

        return read


def _shards(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = index_of(path)["shards"]
    for shard in found:
        if shard.get("format") != "mds" or shard.get("version") != _VERSION:
            raise DataError(
                f"{path} holds shards of format {shard.get('format')!r}, version {shard.get('version')!r}: MDS version "
                f"{_VERSION} can be read."
            )
    return found


def _names(shard: dict[str, Any]) -> list[str]:
    """The names of a shard's files: the plain one, then the compressed one where there is one."""
    return [Path(shard[kind]["basename"]).name for kind in ("raw_data", "zip_data") if shard.get(kind)]


def _file(path: Path, shard: dict[str, Any]) -> str:
    """The file to read: the plain one where it is there."""
    names = _names(shard)
    return next((name for name in names if (path / name).is_file()), names[0])


def decoder(encoding: str, where: str) -> Decode:
    """What makes a value of a field's bytes.

    Raises:
        DataError: The encoding is not known, or could run code.
    """
    name, _, told = encoding.partition(":")
    plain: dict[str, Decode] = {
        "bytes": bytes,
        "jpeg": bytes,
        "png": bytes,
        "str": lambda data: str(data, "utf-8"),
        "int": lambda data: int.from_bytes(data, "little", signed=True),
        "str_int": lambda data: int(bytes(data)),
        "str_float": lambda data: float(bytes(data)),
        "json": lambda data: json.loads(bytes(data)),
    }
    if name in plain:
        return plain[name]
    if name in _SCALARS:
        return lambda data: array_of(data, np.dtype(name).newbyteorder("<"), ())
    if name == "ndarray":
        return _array_decoder(told)
    raise DataError(
        f"{where} holds a column of encoding {encoding!r}, which is not read"
        f"{': a pickle could run anything' if name == 'pkl' else ''}. Write the dataset with another encoding."
    )


def _array_decoder(told: str) -> Decode:
    """Arrays; their type and shape stand in the encoding (`ndarray:int32:2,3`), or before the numbers of each."""
    dtype_name, _, dims = told.partition(":")
    fixed = tuple(map(int, dims.split(","))) if dims else None

    def decode(data: memoryview) -> Any:
        at = 0
        dtype = dtype_name
        if not dtype:
            dtype, at = _ARRAY_DTYPES[data[0]], 1
        shape = fixed
        if shape is None:
            num_dims, width = data[at] >> 2, 2 ** (data[at] % 4)
            end = at + 1 + num_dims * width
            shape, at = tuple(np.frombuffer(data[at + 1 : end], f"<u{width}").tolist()), end
        kind = np.dtype(dtype).newbyteorder("<")
        if len(data) - at != kind.itemsize * math.prod(shape):
            raise ValueError(f"{len(data) - at} bytes for an array of {shape}")
        return array_of(data[at:], kind, shape)

    return decode
