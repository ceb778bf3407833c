"""Read NetCDF-4 and other HDF5 files: h5py reads the structure, and values are read past it where that is safe and faster.

contiguous             each read maps its range of the file
everything else        h5py reads it, under its lock
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.core.errors import CorruptError, MachineError
from hasten.data.cube.stored import Block, Mapped, Raw, Stored, plain

_ROOT = ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME")
"""Attributes that link arrays to dimensions."""


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
            return {name: _array(path, name, dataset) for name, dataset in datasets.items()}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} is truncated or corrupt: {error}. Copy or download it again.") from error


def _array(path: Path, name: str, dataset: Any) -> Stored:
    attrs = plain({key: value for key, value in dataset.attrs.items() if key not in _ROOT and not key.startswith("_N")})
    dims = tuple(_dim(dataset, axis) for axis in range(dataset.ndim))
    common: dict[str, Any] = {
        "path": path, "name": name, "dims": dims, "shape": dataset.shape, "dtype": dataset.dtype, "attrs": attrs,
    }  # fmt: skip
    offset = dataset.id.get_offset()
    if offset is not None and dataset.ndim:
        strides = tuple(np.cumprod((dataset.dtype.itemsize, *dataset.shape[:0:-1]))[::-1].tolist())
        return Mapped(**common, grain=(1,) * dataset.ndim, way="memory map", offset=offset, strides=strides)
    grain = dataset.chunks or (1,) * dataset.ndim
    return Plain(**common, grain=grain, way="h5py")


def _dim(dataset: Any, axis: int) -> str:
    """Return the name of a dimension: that of its scale. A coordinate is its own scale."""
    scales = dataset.dims[axis]
    if len(scales):
        return str(scales[0].name.rpartition("/")[2])
    if dataset.ndim == 1 and dataset.attrs.get("CLASS") == b"DIMENSION_SCALE":
        return str(dataset.name.rpartition("/")[2])
    return f"dimension {axis} of {dataset.name}"


@dataclass(frozen=True, kw_only=True)
class Plain(Stored):
    """An array that h5py reads."""

    def load(self, block: Block) -> Raw:
        """Return the raw values of a block."""
        h5py = _h5py()
        try:
            with h5py.File(self.path, "r") as file:
                return np.asarray(file[self.name][block])
        except (OSError, RuntimeError, KeyError) as error:
            raise CorruptError(f"{self.where} cannot be read: {error}.") from error


def _h5py() -> Any:
    try:
        import h5py  # noqa: PLC0415  of the extra `datacube`
    except ImportError as error:
        raise MachineError("NetCDF-4 and HDF5 need h5py: pip install 'hasten[datacube]'.") from error
    return h5py
