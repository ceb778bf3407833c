"""Read NetCDF-3 files (classic and 64-bit offset): scipy reads the header, and each read maps its range of the file.

The records of several variables are interleaved: a variable's time steps are then far apart, and each read maps all that is
between the first and the last.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hasten.core.errors import CorruptError, MachineError
from hasten.data.cube.stored import Direct, Stored, plain


def read_classic(path: Path) -> dict[str, Stored]:
    """Return the arrays of a NetCDF-3 file.

    Raises:
        CorruptError: The file is truncated or corrupt.
        MachineError: The package scipy is not installed.
    """
    try:
        from scipy.io import netcdf_file  # noqa: PLC0415  of the extra `datacube`
    except ImportError as error:
        raise MachineError("NetCDF-3 needs scipy: pip install 'hasten[datacube]'.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with netcdf_file(path, "r", mmap=True) as file:
                base = file._mm_buf.__array_interface__["data"][0]  # noqa: SLF001  scipy keeps the offset nowhere else
                return {name: _array(path, name, variable, base) for name, variable in file.variables.items()}
    except Exception as error:  # scipy raises arbitrary exceptions on damaged files
        raise CorruptError(f"{path} is truncated or corrupt: {error}. Copy or download it again.") from error


def _array(path: Path, name: str, variable: Any, base: int) -> Stored:
    data = variable.data
    address, _ = data.__array_interface__["data"]
    return Direct(
        path=path,
        name=name,
        dims=tuple(variable.dimensions),
        shape=data.shape,
        dtype=np.dtype(data.dtype),
        attrs=plain(variable._attributes),  # noqa: SLF001  the public way mixes them with methods
        grain=(1,) * data.ndim,
        way="direct access",
        offset=address - base,
        strides=data.strides,
    )
