"""Read Zarr, GRIB and rare kinds of NetCDF through xarray, which asks zarr, cfgrib or netCDF4 for their raw values.

xarray decodes nothing here: missing values, units and calendars mean the same in every format (`cf.py`, `axes.py`).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.data.cube.stored import Block, Raw, Stored, plain

Engine = Literal["zarr", "cfgrib", "netcdf4"]
_PACKAGES: dict[Engine, str] = {"zarr": "zarr", "cfgrib": "cfgrib eccodes", "netcdf4": "netCDF4"}


def read_with_xarray(path: Path, engine: Engine) -> dict[str, Stored]:
    """Return the arrays of a file, or of a Zarr store.

    Raises:
        CorruptError: It is truncated or corrupt.
        DataError: The messages of a GRIB file are not on one set of levels, times and grid points.
        MachineError: A package is not installed.
    """
    try:
        stamp = max(file.stat().st_mtime_ns for file in (path, *path.glob("*")))
        variables = _variables(path, engine, stamp, os.getpid())
    except ImportError as error:
        raise MachineError(f"{path} needs xarray and {engine}: pip install xarray {_PACKAGES[engine]}") from error
    except Exception as error:  # the libraries raise arbitrary exceptions on damaged files
        if "unrecognized engine" in str(error):
            raise MachineError(f"{path} needs {engine}: pip install {_PACKAGES[engine]}") from error
        if type(error).__name__ == "DatasetBuildError":
            raise DataError(
                f"{path} holds variables with different levels, times or grids: {error.args[0]}. Split the file first, for "
                f"example with: grib_copy {path.name} '[shortName]_[typeOfLevel].grib'"
            ) from error
        raise CorruptError(f"{path} is truncated or corrupt: {error}. Copy or download it again.") from error
    needed = sum(variable.nbytes for variable in variables.values()) if engine == "netcdf4" else 0
    if needed > path.stat().st_size:  # netCDF4 would read zeros
        raise CorruptError(f"{path} is truncated: {path.stat().st_size:,} bytes, and its variables need {needed:,}.")
    if engine == "zarr":  # the folders of a store have no order
        variables = dict(sorted(variables.items()))
    return {name: _array(path, name, variable, engine, stamp) for name, variable in variables.items()}


def _array(path: Path, name: str, variable: Any, engine: Engine, stamp: int) -> Stored:
    chunks = variable.encoding.get("shards") or variable.encoding.get("chunks") or variable.encoding.get("chunksizes")
    return WithXarray(
        path=path,
        name=name,
        dims=tuple(map(str, variable.dims)),
        shape=variable.shape,
        dtype=np.dtype(variable.dtype),
        attrs=plain(variable.attrs),
        grain=tuple(chunks or (1,) * variable.ndim),
        way=engine if engine == "zarr" else f"xarray with {engine}",
        engine=engine,
        stamp=stamp,
    )


@lru_cache(maxsize=256)
def _variables(path: Path, engine: Engine, stamp: int, process: int) -> dict[str, Any]:  # noqa: ARG001  they tell calls apart
    """Open a file once in each process, and again if it was replaced."""
    import xarray  # noqa: PLC0415  of the extra `datacube`

    kept = {"indexpath": "", "errors": "raise"}  # write no index, and skip neither messages nor variables
    options: dict[str, Any] = {"backend_kwargs": kept} if engine == "cfgrib" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Zarr stores without consolidated metadata, and of GRIB keys
        data = xarray.open_dataset(path, engine=engine, decode_cf=False, cache=False, **options)
    return {str(name): variable for name, variable in data.variables.items()}


@dataclass(frozen=True, kw_only=True)
class WithXarray(Stored):
    """An array that xarray reads.

    Attributes:
        engine: What xarray reads it with.
        stamp: When the file was last changed, in nanoseconds.
    """

    engine: Engine
    stamp: int

    def load(self, block: Block) -> Raw:
        """Return the raw values of a block."""
        try:
            variables = _variables(self.path, self.engine, self.stamp, os.getpid())
            return np.asarray(variables[self.name][block].values)
        except Exception as error:  # the libraries raise arbitrary exceptions on damaged files
            raise CorruptError(f"{self.where}: values cannot be read: {error}.") from error
