"""Read NetCDF-4 and other HDF5 files: h5py reads the structure, and values are read past it where that is safe and faster.

contiguous                         each read takes its range of the file
chunks: zlib, shuffle, fletcher32  h5py finds the chunks; threads read their bytes and decode them
everything else                    h5py reads it, under its lock
"""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hasten.core.errors import CorruptError, DataError, HastenError, MachineError
from hasten.data.cube.stored import Block, Direct, Raw, Stored, plain

_ROOT = ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME")
"""Attributes that link arrays to dimensions."""
_ID = "_Netcdf4Dimid"
"""Attribute of a coordinate, and of some variables: NetCDF's number of its (first) dimension."""
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
"""Attribute NAME of what NetCDF stores for a dimension without a coordinate, followed by its size."""
_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
"""Numbers of filters (HDF5 specification, IV.A.2.l)."""
_MOST_DEFLATED = 1032
"""Bytes that one byte of a zlib stream can become at most."""


def read_hdf5(path: Path) -> dict[str, Stored]:
    """Return the arrays in the root group of an HDF5 file.

    Raises:
        CorruptError: The file is truncated or corrupt.
        MachineError: The package h5py is not installed.
    """
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            datasets = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
            ids = {int(item.attrs[_ID]): name for name, item in datasets.items() if _is_scale(item) and _ID in item.attrs}
            return {
                name: _array(path, name, dataset, ids)
                for name, dataset in datasets.items()
                if not np.bytes_(dataset.attrs.get("NAME", b"")).startswith(_NO_VARIABLE)
            }
    except HastenError:
        raise
    except Exception as error:  # h5py raises arbitrary exceptions on damaged files
        raise CorruptError(f"{path} is truncated or corrupt: {error}. Copy or download it again.") from error


def _array(path: Path, name: str, dataset: Any, ids: dict[int, str]) -> Stored:
    names = [key for key in dataset.attrs if key not in _ROOT and not key.startswith("_N")]
    attrs = plain({key: dataset.attrs[key] for key in names})
    dims = _dims(dataset, ids)
    common: dict[str, Any] = {
        "path": path, "name": name, "dims": dims, "shape": dataset.shape, "dtype": dataset.dtype, "attrs": attrs,
    }  # fmt: skip
    grain = dataset.chunks or (1,) * dataset.ndim
    reason = _unusual(dataset)
    if reason is not None:
        return Plain(**common, grain=grain, way=f"h5py: {reason}")
    length = path.stat().st_size
    if dataset.chunks:
        return _chunked(dataset, common, length)
    offset = dataset.id.get_offset()
    if offset + dataset.nbytes > length:
        raise CorruptError(
            f"{path} is truncated or corrupt: {name} ends at byte {offset + dataset.nbytes:,} of {length:,}. "
            "Copy or download it again."
        )
    strides = tuple(np.cumprod((dataset.dtype.itemsize, *dataset.shape[:0:-1]))[::-1].tolist())
    return Direct(**common, grain=(1,) * dataset.ndim, way="direct access", offset=offset, strides=strides)


def _unusual(dataset: Any) -> str | None:
    """Say why only h5py can read an array. None if its bytes can be read past h5py."""
    if dataset.dtype.kind not in "iuf":
        return f"{dataset.dtype} are not numbers"
    if dataset.is_virtual or dataset.external:
        return "it is stored in other files"
    if dataset.file.userblock_size:
        return "the file has a user block"
    if not dataset.chunks:
        return "never written or stored in the header" if dataset.id.get_offset() is None or not dataset.ndim else None
    filters = _filters(dataset)
    for code, (size, *_), name in filters:
        if code not in {_DEFLATE, _SHUFFLE, _FLETCHER} or (code == _SHUFFLE and size != dataset.dtype.itemsize):
            return f"filter {name or code}"
    codes = [code for code, *_ in filters]
    if len(codes) != len(set(codes)) or (_SHUFFLE in codes and codes[0] != _SHUFFLE):
        return f"filters in the order {', '.join(name for *_, name in filters)}"
    return None


def _filters(dataset: Any) -> list[tuple[int, tuple[int, ...], str]]:
    """Return the number, the settings and the name of each filter, in the order in which they were applied."""
    made = dataset.id.get_create_plist()
    found = [made.get_filter(index) for index in range(made.get_nfilters())]
    return [(code, (*values, 0), name.decode("utf-8", "replace")) for code, _, values, name in found]


def _chunked(dataset: Any, common: dict[str, Any], length: int) -> Stored:
    """Find the chunks of an array. Each needs some bytes of the file, so their number is bounded by its length."""
    path, name = common["path"], common["name"]
    corrupt = f"{path} is truncated or corrupt: "
    chunk, filters = dataset.chunks, tuple(code for code, *_ in _filters(dataset))
    size = math.prod(chunk) * dataset.dtype.itemsize
    counts = [-(-extent // part) for extent, part in zip(dataset.shape, chunk, strict=True)]
    if dataset.id.get_num_chunks() > length:
        raise CorruptError(f"{corrupt}{name} has {dataset.id.get_num_chunks():,} chunks in {length:,} bytes.")
    if math.prod(counts) >= 2**62:
        raise DataError(f"{path}: {name} claims {math.prod(counts):,} chunks, which cannot be right.")
    rows: list[tuple[int, int, int, int]] = []

    def add(found: Any) -> None:
        at = 0
        for start, part, count in zip(found.chunk_offset, chunk, counts, strict=True):
            at = at * count + start // part
        rows.append((at, found.byte_offset, found.size, found.filter_mask))

    dataset.id.chunk_iter(add)
    index = np.array(sorted(rows), np.uint64).reshape(-1, 4)
    most = size * 2 + 2**16 if filters else size  # deflate and checksums can make a chunk a little larger
    for at, offset, stored, _ in index.tolist():
        ends, expands = offset + stored > length, _DEFLATE in filters and size > stored * _MOST_DEFLATED + 64
        if ends or stored > most or expands:
            raise CorruptError(
                f"{corrupt}chunk {at:,} of {name} claims the bytes {offset:,} to {offset + stored:,} of {length:,}, for "
                f"{size:,} bytes of values. Copy or download it again."
            )
    names = {_DEFLATE: "zlib", _SHUFFLE: "shuffle", _FLETCHER: "fletcher32"}
    way = ", ".join(("chunks by threads", *(names[code] for code in filters)))
    fill = np.asarray(dataset.fillvalue, dataset.dtype)
    return Chunked(**common, grain=chunk, way=way, index=index, filters=filters, fill=fill)


def _is_scale(dataset: Any) -> bool:
    return bool(dataset.attrs.get("CLASS") == b"DIMENSION_SCALE")


def _dims(dataset: Any, ids: dict[int, str]) -> tuple[str, ...]:
    """Return the names of the dimensions: by NetCDF's numbers of them, or by the scales that HDF5 links to.

    The numbers are preferred because HDF5 2.0 does not return from reading links whose heap is damaged.
    """
    if dataset.ndim == 1 and _is_scale(dataset):
        return (str(dataset.name.rpartition("/")[2]),)
    numbers = np.atleast_1d(dataset.attrs.get("_Netcdf4Coordinates", ())).tolist()
    if len(numbers) == dataset.ndim and all(number in ids for number in numbers):
        return tuple(ids[number] for number in numbers)
    scales = [dataset.dims[axis] for axis in range(dataset.ndim)]
    return tuple(
        str(scale[0].name.rpartition("/")[2]) if len(scale) else f"dimension {axis} of {dataset.name}"
        for axis, scale in enumerate(scales)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunked(Stored):
    """An array in chunks, decoded without the lock of HDF5.

    Attributes:
        index: For each chunk in the file its number in C order, its first byte, its length in bytes, and the filters that
            were skipped, as bits. [chunk, 4], ascending. Other chunks were never written.
        filters: Numbers of the filters, in the order in which they were applied.
        fill: Value of chunks that were never written.
    """

    index: Raw
    filters: tuple[int, ...]
    fill: Raw

    def load(self, block: Block) -> Raw:
        """Return the raw values of a block. Memory: the block, and two chunks."""
        counts = [-(-extent // part) for extent, part in zip(self.shape, self.grain, strict=True)]
        spans = [range(part.start // grain, -(-part.stop // grain)) for part, grain in zip(block, self.grain, strict=True)]
        shape = tuple(part.stop - part.start for part in block)
        out: Raw | None = None
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise CorruptError(f"{self.where} cannot be read: {error}.") from error
        with file:
            for places in product(*spans):
                chunk = self._chunk(file.fileno(), int(np.ravel_multi_index(places, counts)))
                starts = [place * grain for place, grain in zip(places, self.grain, strict=True)]
                source, target = [], []
                for part, start, grain in zip(block, starts, self.grain, strict=True):
                    first, last = max(part.start, start), min(part.stop, start + grain)
                    source.append(slice(first - start, last - start))
                    target.append(slice(first - part.start, last - part.start))
                if chunk is not None and chunk[tuple(source)].shape == shape:
                    return chunk[tuple(source)]
                if out is None:
                    out = np.empty(shape, self.dtype)
                out[tuple(target)] = self.fill if chunk is None else chunk[tuple(source)]
        return np.empty(shape, self.dtype) if out is None else out

    def _chunk(self, file: int, number: int) -> Raw | None:
        """Return the values of a chunk. None if it was never written."""
        at = int(np.searchsorted(self.index[:, 0], np.uint64(number)))
        if at == len(self.index) or int(self.index[at, 0]) != number:
            return None
        _, offset, length, skipped = self.index[at].tolist()
        size = math.prod(self.grain) * self.dtype.itemsize
        try:
            data = os.pread(file, length, offset)
            if len(data) != length:
                raise ValueError(f"the file ends after {len(data):,} of {length:,} bytes")  # noqa: TRY301
            for bit, code in reversed(list(enumerate(self.filters))):
                if not skipped >> bit & 1:
                    data = _decoded(code, data, size, self.dtype.itemsize)
            if len(data) != size:
                raise ValueError(f"{len(data):,} bytes instead of {size:,}")  # noqa: TRY301
        except (OSError, ValueError, RuntimeError, zlib.error, _isal().error) as error:
            raise CorruptError(f"{self.where}: chunk {number:,} at byte {offset:,} is corrupt: {error}.") from error
        return np.frombuffer(data, self.dtype).reshape(self.grain)


def _decoded(code: int, data: Any, size: int, itemsize: int) -> Any:
    """Undo a filter.

    Raises:
        ValueError, RuntimeError, isal_zlib.error: The bytes are corrupt.
    """
    if code == _DEFLATE:
        stream = _isal().decompressobj()
        data = stream.decompress(data, size + 64)  # a checksum may follow the values
        if not stream.eof:
            raise ValueError(f"a zlib stream is truncated, or longer than {size:,} bytes")
    elif code == _SHUFFLE:
        if len(data) != size:
            raise ValueError(f"{len(data):,} bytes instead of {size:,}")
        if itemsize == 2:  # shifts are faster
            planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
            data = planes[0].astype("<u2")
            data |= np.left_shift(planes[1], 8, dtype=np.uint16)
        else:
            from numcodecs import Shuffle  # noqa: PLC0415  of the extra `datacube`

            data = Shuffle(itemsize).decode(data)
    else:
        from numcodecs.fletcher32 import Fletcher32  # noqa: PLC0415  of the extra `datacube`

        data = Fletcher32().decode(data)
    return memoryview(data).cast("B")


def _isal() -> Any:
    try:
        from isal import isal_zlib  # noqa: PLC0415  of the extra `datacube`
    except ImportError:
        return zlib
    return isal_zlib


@dataclass(frozen=True, kw_only=True)
class Plain(Stored):
    """An array that h5py reads."""

    def load(self, block: Block) -> Raw:
        """Return the raw values of a block."""
        h5py = _h5py()
        try:
            with h5py.File(self.path, "r") as file:
                return np.asarray(file[self.name][block])
        except Exception as error:  # h5py raises arbitrary exceptions on damaged files
            raise CorruptError(f"{self.where} cannot be read: {error}.") from error


def _h5py() -> Any:
    try:
        import h5py  # noqa: PLC0415  of the extra `datacube`
    except ImportError as error:
        raise MachineError("NetCDF-4 and HDF5 need h5py: pip install 'hasten[datacube]'.") from error
    return h5py
