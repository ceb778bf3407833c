"""Read NumPy files, whose first dimension counts rows. `allow_pickle` stays off, because pickles can run any code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
        """Return units of some rows each. An `.npz` file is one unit, because it is read from its start.

        Arrays of different types or shapes in one folder (`X.npy`, `y.npy`) become columns. They need equally many rows.
        """
        kinds: dict[Path, tuple[np.dtype[Any], tuple[int, ...]]] = {}

        def parts(file: Path) -> Iterator[Unit]:
            if file.suffix.lower() == ".npz":
                yield Unit(path=str(file), num_bytes=file.stat().st_size)
                return
            array = _mapped(file)
            kinds[file] = (array.dtype, array.shape)
            for start, end in _ranges(array[:1].nbytes, _UNIT_BYTES, len(array)):
                yield Unit(path=str(file), start=start, end=end, num_bytes=array[start:end].nbytes)

        units = units_of(path, ENDINGS, parts)
        if not units or len({(dtype, shape[1:]) for dtype, shape in kinds.values()}) < 2:
            return units
        is_packed = any(unit.path.lower().endswith(".npz") for unit in units)
        if is_packed or len({(shape[0], file.parent) for file, (_, shape) in kinds.items()}) > 1:
            names = " and ".join(f"{file.name} ({dtype}{list(shape)})" for file, (dtype, shape) in kinds.items())
            raise DataError(
                f"{names} have rows of different types or shapes. To be columns, they must be in one folder without "
                f".npz files, and have equally many rows. Otherwise convert them to separate stores."
            )
        files = tuple(file.name for file in kinds)
        row_bytes = sum(dtype.itemsize * math.prod(shape[1:]) for dtype, shape in kinds.values())
        first, (_, (num_rows, *_)) = next(iter(kinds.items()))
        columns = [
            Unit(path=str(first.parent), files=files, start=start, end=end, num_bytes=row_bytes * (end - start))
            for start, end in _ranges(row_bytes, _UNIT_BYTES, num_rows)
        ]
        return [replace(columns[0], notes=units[0].notes), *columns[1:], *(unit for unit in units[1:] if unit.problem)]

    @classmethod
    def remarks(cls, units: Sequence[Unit], choices: Choices) -> list[str]:
        """Say whether several files are columns of the same rows, or rows of the same column."""
        if units[0].files:
            return [f"read as columns of the same rows: {', '.join(units[0].files)}"]
        names = list(dict.fromkeys(Path(unit.path).name for unit in units if unit.path.lower().endswith(".npy")))
        shown = f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
        told = f"read one after another, as rows of one column, because their type and shape are equal: {shown}"
        return [told] if len(names) > 1 else []

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[ReadPart]:
        """Return the rows of one or several arrays."""
        if unit.path.lower().endswith(".npz"):
            yield from _archive(unit.path, choices)
            return
        files = {Path(name).stem: Path(unit.path) / name for name in unit.files} or {"data": Path(unit.path)}
        wanted = [name for name in files if name in choices.columns or not (choices.columns and unit.files)]
        if not wanted:
            raise DataError(f"{unit.path} contains the arrays {', '.join(files)}, none of which was requested.")
        arrays = {name: _mapped(files[name]) for name in wanted}
        row_bytes = sum(array[:1].nbytes for array in arrays.values())
        for start, end in _ranges(row_bytes, _PART_BYTES, unit.end, unit.start):
            yield {name: np.ascontiguousarray(array[start:end]) for name, array in arrays.items()}


def _ranges(row_bytes: int, most_bytes: int, end: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of at most some bytes."""
    rows = max(1, most_bytes // max(1, row_bytes))
    for begin in range(start, end, rows):
        yield begin, min(begin + rows, end)


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
