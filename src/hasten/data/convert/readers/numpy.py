"""NumPy's files: the first dimension counts rows. `allow_pickle` stays off: such a file could run anything."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, Reader, Rows, Unit, files_under, has_files
from hasten.data.convert.refusals import cut

ENDINGS = (".npy", ".npz")
_PART_BYTES = 8 * 2**20
_UNIT_BYTES = 64 * 2**20


class Numpy(Reader):
    """Arrays: `.npy` is a column named `data`; an `.npz` holds a column each, all of the same number of rows."""

    name: ClassVar[str] = "numpy"
    words: ClassVar[str] = "NumPy arrays, a row each along the first dimension (.npy, .npz)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By its ending."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Some rows each; an `.npz`, which is read from its start, is one."""
        found = []
        for file in files_under(path, ENDINGS):
            if file.suffix.lower() == ".npz":
                found.append(Unit(path=str(file), num_bytes=file.stat().st_size))
                continue
            array = _mapped(file)
            rows = max(1, _UNIT_BYTES // max(1, array[:1].nbytes))
            found += [
                Unit(path=str(file), start=at, end=min(at + rows, len(array)), num_bytes=array[at : at + rows].nbytes)
                for at in range(0, len(array), rows)
            ]
        return found

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Rows of one or several arrays."""
        if unit.path.lower().endswith(".npz"):
            yield from _archive(unit.path, choices)
            return
        array = _mapped(Path(unit.path))
        rows = max(1, _PART_BYTES // max(1, array[:1].nbytes))
        for at in range(unit.start, unit.end, rows):
            yield {"data": np.ascontiguousarray(array[at : min(at + rows, unit.end)])}


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is no NumPy array of plain numbers: {_reason(error)}.") from error
    _check(array.dtype, array.ndim, str(path))
    return array


def _archive(path: str, choices: Choices) -> Iterator[Rows]:
    """All arrays of an `.npz` side by side, a few rows of each at a time."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            wanted = [name for name in names if not choices.columns or name.removesuffix(".npy") in choices.columns]
            if not wanted:
                raise DataError(f"{path} holds the arrays {', '.join(names)}, none of which was asked for.")
            files = {name.removesuffix(".npy"): archive.open(name) for name in wanted}
            parts = {name: _Rows(file, f"{path}, {name}") for name, file in files.items()}
            lengths = {name: part.num_rows for name, part in parts.items()}
            if len(set(lengths.values())) > 1:
                raise DataError(
                    f"the arrays of {path} differ in their number of rows: {lengths}. Name those that belong together "
                    f"(--columns)."
                )
            rows = max(1, _PART_BYTES // max(1, sum(part.row_bytes for part in parts.values())))
            for at in range(0, next(iter(lengths.values())), rows):
                yield {name: part.read(min(rows, part.num_rows - at)) for name, part in parts.items()}
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise DataError(f"{path} is no NumPy archive: {_reason(error)}.") from error


class _Rows:
    """An array within an archive, read from its start."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, self._dtype = read(file)
        except ValueError as error:
            raise DataError(f"{where} is no NumPy array of plain numbers: {_reason(error)}.") from error
        _check(self._dtype, len(shape), where)
        if fortran and len(shape) > 1:
            raise DataError(
                f"{where} is in Fortran order, whose rows do not lie together: save it by np.ascontiguousarray first."
            )
        self._file, self._where = file, where
        self._shape = shape[1:]
        self.num_rows: int = shape[0]
        self.row_bytes = self._dtype.itemsize * math.prod(self._shape)

    def read(self, rows: int) -> npt.NDArray[Any]:
        data = self._file.read(rows * self.row_bytes)
        if len(data) != rows * self.row_bytes:
            raise cut(self._where)
        return np.frombuffer(data, self._dtype).reshape(rows, *self._shape)


def _check(dtype: np.dtype[Any], ndim: int, where: str) -> None:
    if dtype.kind not in "biufc" or not ndim:
        raise DataError(f"{where} holds {dtype} in {ndim} dimensions: rows of numbers are needed, at least one dimension.")


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
