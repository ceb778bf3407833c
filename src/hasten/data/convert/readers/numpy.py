"""Read NumPy files, whose first dimension counts rows. `allow_pickle` stays off, because pickles can run any code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.convert.contract import MAX_FILE_BYTES, Choices, Note, Reader, ReadPart, Unit, units_of
from hasten.data.convert.listing import has_files
from hasten.data.convert.refusals import truncated

ENDINGS = (".npy", ".npz")
_PART_BYTES = 8 * 2**20
_UNIT_BYTES = 64 * 2**20


class Numpy(Reader):
    """Read arrays: a `.npy` file becomes the column `data`, an `.npz` one column per array, all with equal row counts."""

    name: ClassVar[str] = "numpy"
    words: ClassVar[str] = "NumPy arrays, with rows along the first dimension (.npy, .npz)"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffix."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return units of some rows each. An `.npz` file is one unit, because it is read from its start."""
        kinds: dict[tuple[Any, ...], Path] = {}

        def parts(file: Path) -> Iterator[Unit]:
            if file.suffix.lower() == ".npz":
                yield Unit(path=str(file), num_bytes=file.stat().st_size)
                return
            array = _mapped(file)
            kinds.setdefault((array.dtype, array.shape[1:]), file)
            if len(kinds) > 1:
                names = " and ".join(f"{other.name} ({kind[0]}{list(kind[1])})" for kind, other in kinds.items())
                raise DataError(f"{names} have rows of different types or shapes: save them as columns of one .npz file.")
            rows = max(1, _UNIT_BYTES // max(1, array[:1].nbytes))
            for start in range(0, len(array), rows):
                num_bytes = array[start : start + rows].nbytes
                yield Unit(path=str(file), start=start, end=min(start + rows, len(array)), num_bytes=num_bytes)

        return units_of(path, ENDINGS, parts)

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[ReadPart]:
        """Return the rows of one or several arrays."""
        if unit.path.lower().endswith(".npz"):
            yield from _archive(unit.path, choices)
            return
        array = _mapped(Path(unit.path))
        rows = max(1, _PART_BYTES // max(1, array[:1].nbytes))
        for start in range(unit.start, unit.end, rows):
            yield {"data": np.ascontiguousarray(array[start : min(start + rows, unit.end)])}


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise BrokenFileError(str(path), f"is not a NumPy array of plain numbers: {_reason(error)}.") from error
    _check(array.dtype, array.ndim, str(path))
    if path.stat().st_size > array.offset + array.nbytes:  # type: ignore[attr-defined]  # a memmap
        raise BrokenFileError(
            str(path), "contains other data after its array, perhaps a second one: save each in its own file."
        )
    return array


def _archive(path: str, choices: Choices) -> Iterator[ReadPart]:
    """Return all arrays of an `.npz` file together, a few rows at a time."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            if len(set(names)) < len(names):
                raise BrokenFileError(path, "contains several arrays of the same name: save it again.")
            wanted = [name for name in names if not choices.columns or name.removesuffix(".npy") in choices.columns]
            if not names:
                raise BrokenFileError(path, "contains no arrays.")
            if not wanted:
                raise DataError(f"{path} contains the arrays {', '.join(names)}, none of which was requested.")
            files = {name.removesuffix(".npy"): archive.open(name) for name in wanted}
            parts = {name: _part(file, path, name) for name, file in files.items()}
            if others := len(archive.namelist()) - len(names):
                yield Note("skipped files in archives that are not arrays", others)
            lengths = {name: part.num_rows for name, part in parts.items()}
            if len(set(lengths.values())) > 1:
                raise BrokenFileError(
                    path,
                    f"contains arrays with different numbers of rows: {lengths}. Select arrays that belong together "
                    f"(--columns).",
                )
            rows = max(1, _PART_BYTES // max(1, sum(part.row_bytes for part in parts.values())))
            for start in range(0, next(iter(lengths.values())), rows):
                yield {name: part.read(min(rows, part.num_rows - start)) for name, part in parts.items()}
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise BrokenFileError(path, f"is not a NumPy archive: {_reason(error)}.") from error


def _part(file: IO[bytes], path: str, name: str) -> _Rows:
    try:
        return _Rows(file, path)
    except BrokenFileError as error:
        what = error.reason.removeprefix("the file ").rstrip(".")
        raise BrokenFileError(path, f": its array {name!r} {what}. Select other arrays (--columns).") from error


class _Rows:
    """Read an array of an archive from its start."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, self._dtype = read(file)
        except ValueError as error:
            raise BrokenFileError(where, f"is not a NumPy array of plain numbers: {_reason(error)}.") from error
        _check(self._dtype, len(shape), where)
        if fortran and len(shape) > 1:
            raise BrokenFileError(
                where, "is in Fortran order, so its rows are not contiguous: save it with np.ascontiguousarray first."
            )
        self._file, self._where = file, where
        self._shape = shape[1:]
        self.num_rows: int = shape[0]
        self.row_bytes = self._dtype.itemsize * math.prod(self._shape)
        if self.row_bytes > MAX_FILE_BYTES:
            raise BrokenFileError(where, f"has rows of more than {MAX_FILE_BYTES:,} bytes.")

    def read(self, rows: int) -> npt.NDArray[Any]:
        data = self._file.read(rows * self.row_bytes)
        if len(data) != rows * self.row_bytes:
            raise truncated(self._where)
        return np.frombuffer(data, self._dtype).reshape(rows, *self._shape)


def _check(dtype: np.dtype[Any], ndim: int, where: str) -> None:
    if dtype.kind not in "biufc" or not ndim:
        raise BrokenFileError(
            where, f"contains {dtype} with {ndim} dimensions: it must contain numbers and have at least one dimension."
        )


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
