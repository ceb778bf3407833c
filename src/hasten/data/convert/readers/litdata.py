"""Read folders written by LitData's `optimize`, without that library.

Source of the format: LitData, src/litdata/streaming/serializers.py and src/litdata/constants.py. LitData pickles leaves that
no other serializer accepts. Pickles can run any code, so such folders are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hasten.core.errors import DataError
from hasten.data.convert.chunks import Chunked, Decode, array_of, chunk_unit, index_of, samples_of
from hasten.data.convert.contract import Unit

_TENSORS = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8",
    13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip
"""Type numbers of `_TORCH_DTYPES_MAPPING`, without complex types and bfloat16, which no column can store."""
_ARRAYS = dict(enumerate((
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)))  # fmt: skip
"""Type numbers of `_NUMPY_DTYPES_MAPPING`."""
_LARGEST_SMALL = 255
"""Upper limit for type numbers and numbers of dimensions. Read in the wrong byte order, all except 0 are larger."""


class LitData(Chunked):
    """Read a LitData folder: one column per field of a record, other samples as the column `data`, images as bytes."""

    name: ClassVar[str] = "litdata"
    words: ClassVar[str] = "a folder written by LitData's optimize (index.json with chunks)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the index."""
        return "chunks" in index_of(path)

    @classmethod
    def chunks(cls, path: Path) -> Sequence[Unit]:
        """Return one unit per chunk."""
        config = index_of(path).get("config") or {}
        if config.get("encryption"):
            raise DataError(f"{path} is encrypted: decrypt it with LitData first.")
        return [chunk_unit(path, chunk["filename"]) for chunk in index_of(path)["chunks"]]

    @classmethod
    def open(cls, path: Path) -> Callable[[str], Iterator[tuple[memoryview, dict[str, Any] | str]]]:
        """Return a function that reads a chunk."""
        config = index_of(path)["config"]
        formats = list(config["data_format"])
        decodes: list[tuple[int | None, Decode]] = [(None, decoder(kind, str(path))) for kind in formats]
        if len(formats) == 1 and formats[0].startswith("no_header_tensor"):
            # A single one-dimensional tensor is stored without its size: it ends where the next one begins.
            decodes = []
        make = _record_maker(config.get("data_spec"), len(formats), str(path))

        def read(file: str) -> Iterator[tuple[memoryview, dict[str, Any] | str]]:
            for data, values in samples_of(file, config.get("compression") or "", None, decodes):
                if isinstance(values, str):
                    yield data, values
                elif decodes:
                    yield data, make(values)
                else:
                    yield data, _whole(data, decoder(formats[0], str(path)), make)

        return read


def _whole(data: memoryview, decode: Decode, make: Callable[[list[Any]], dict[str, Any]]) -> dict[str, Any] | str:
    try:
        return make([decode(data)])
    except ValueError:
        return "its size is not a multiple of the item size"


def decoder(kind: str, where: str) -> Decode:
    """Return the function that decodes a leaf.

    Raises:
        DataError: The serializer is unknown, or can run code.
    """
    name, _, variable = kind.partition(":")
    plain: dict[str, Decode] = {
        "bytes": bytes,
        "jpeg": bytes,
        "file": bytes,
        "str": lambda data: str(data, "utf-8"),
        "text": lambda data: str(data, "utf-8"),
        "bool": lambda data: bool(data[0]),
        "int": lambda data: int.from_bytes(data, "little", signed=True),
        "float": lambda data: array_of(data, np.dtype("<f8"), ()),
        "tensor": partial(_array, _TENSORS),
        "numpy": partial(_array, _ARRAYS),
    }
    if name in plain:
        return plain[name]
    types = {"no_header_tensor": _TENSORS, "no_header_numpy": _ARRAYS}.get(name, {})
    if variable.isdigit() and int(variable) in types:
        dtype = np.dtype(types[int(variable)]).newbyteorder("<")
        return lambda data: array_of(data, dtype, (-1,))
    raise DataError(
        f"{where} contains a leaf of kind {kind!r}, which is not supported"
        f"{': pickles can run any code' if name == 'pickle' else ''}. Write the dataset with plain values."
    )


def _array(types: dict[int, str], data: memoryview) -> Any:
    """Decode an array with a header of type, dimensions and shape. Newer versions write big-endian tensor headers."""
    order = "<" if max(np.frombuffer(data[:8], "<u4").tolist()) <= _LARGEST_SMALL else ">"
    kind, num_dims = np.frombuffer(data[:8], f"{order}u4").tolist()
    start = 8 + 4 * num_dims
    shape = np.frombuffer(data[8:start], f"{order}u4").tolist()
    dtype = np.dtype(types[kind]).newbyteorder("<")
    if len(data) - start != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(data) - start} bytes for an array of {shape}")
    return array_of(data[start:], dtype, shape)


def _record_maker(spec: str | None, leaves: int, where: str) -> Callable[[list[Any]], dict[str, Any]]:
    """Return a function that builds a record from leaves: by names of a dictionary, by numbers of a list, or as `data`.

    The index contains the tree in the format of `torch.utils._pytree.treespec_dumps`.
    """
    tree = json.loads(spec)[1] if spec else {"type": None, "children_spec": []}
    kind, children = tree["type"], tree["children_spec"]
    if kind is not None and any(child["type"] is not None for child in children):
        raise DataError(f"{where} contains nested samples: write them as dictionaries of plain values.")
    if kind is None:
        names = ["data"]
    elif kind in {"builtins.dict", "collections.OrderedDict"}:
        names = [str(name) for name in json.loads(tree["context"])]
    else:
        names = [str(number) for number in range(len(children))]
    if len(names) != leaves:
        raise DataError(f"{where} lists {len(names)} fields but contains {leaves}: its index.json was modified.")
    return lambda values: dict(zip(names, values, strict=True))
