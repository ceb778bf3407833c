"""Read folders of MDS shards, as written by MosaicML Streaming's `MDSWriter`, without that library.

Source of the format: mosaicml-streaming, streaming/base/format/mds/encodings.py, version 2 of its index. A shard can contain
pickles, which can run any code, so such columns are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hasten.core.errors import DataError
from hasten.data.convert.chunks import Chunked, Decode, array_of, chunk_unit, index_of, samples_of
from hasten.data.convert.contract import Unit
from hasten.data.convert.json_text import loads

_VERSION = 2
_SCALARS = frozenset({
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
})  # fmt: skip
_ARRAY_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


class Mds(Chunked):
    """Read a folder of MDS shards with their columns. Images are read as the bytes of their files."""

    name: ClassVar[str] = "mds"
    words: ClassVar[str] = "a folder of MDS shards by MosaicML Streaming (index.json with shards)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the index."""
        return "shards" in index_of(path)

    @classmethod
    def chunks(cls, path: Path) -> Sequence[Unit]:
        """Return one unit per shard. Compressed files are used only if there is no plain file, as in the library."""
        return [chunk_unit(path, _file(path, shard)) for shard in _shards(path)]

    @classmethod
    def open(cls, path: Path) -> Callable[[str], Iterator[tuple[memoryview, dict[str, Any] | str]]]:
        """Return a function that reads a shard."""
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
    shards: list[dict[str, Any]] = index_of(path)["shards"]
    for shard in shards:
        if shard.get("format") != "mds" or shard.get("version") != _VERSION:
            raise DataError(
                f"{path} contains shards of format {shard.get('format')!r}, version {shard.get('version')!r}: only MDS "
                f"version {_VERSION} is supported."
            )
    return shards


def _names(shard: dict[str, Any]) -> list[str]:
    """Return the names of a shard's files: the plain file, and the compressed file if there is one."""
    return [Path(shard[kind]["basename"]).name for kind in ("raw_data", "zip_data") if shard.get(kind)]


def _file(path: Path, shard: dict[str, Any]) -> str:
    """Return the name of the file to read: the plain file if it exists."""
    names = _names(shard)
    return next((name for name in names if (path / name).is_file()), names[0])


def decoder(encoding: str, where: str) -> Decode:
    """Return the function that decodes a field.

    Raises:
        DataError: The encoding is unknown, or can run code.
    """
    name, _, variable = encoding.partition(":")
    plain: dict[str, Decode] = {
        "bytes": bytes,
        "jpeg": bytes,
        "png": bytes,
        "str": lambda data: str(data, "utf-8"),
        "int": lambda data: int.from_bytes(data, "little", signed=True),
        "str_int": lambda data: int(bytes(data)),
        "str_float": lambda data: float(bytes(data)),
        "json": loads,
    }
    if name in plain:
        return plain[name]
    if name in _SCALARS:
        return lambda data: array_of(data, np.dtype(name).newbyteorder("<"), ())
    if name == "ndarray":
        return _array_decoder(variable)
    raise DataError(
        f"{where} contains a column with encoding {encoding!r}, which is not supported"
        f"{': pickles can run any code' if name == 'pkl' else ''}. Write the dataset with another encoding."
    )


def _array_decoder(spec: str) -> Decode:
    """Return a decoder for arrays. Type and shape are in the encoding (`ndarray:int32:2,3`) or in each array's header."""
    dtype_name, _, dims = spec.partition(":")
    fixed = tuple(map(int, dims.split(","))) if dims else None

    def decode(data: memoryview) -> Any:
        start = 0
        dtype = dtype_name
        if not dtype:
            dtype, start = _ARRAY_DTYPES[data[0]], 1
        shape = fixed
        if shape is None:
            num_dims, width = data[start] >> 2, 2 ** (data[start] % 4)
            end = start + 1 + num_dims * width
            shape, start = tuple(np.frombuffer(data[start + 1 : end], f"<u{width}").tolist()), end
        kind = np.dtype(dtype).newbyteorder("<")
        if len(data) - start != kind.itemsize * math.prod(shape):
            raise ValueError(f"{len(data) - start} bytes for an array of {shape}")
        return array_of(data[start:], kind, shape)

    return decode
