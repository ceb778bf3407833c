"""Define readers of sources: they split a source into units of work and return the rows of each unit.

Each unit can be read independently, in any order and in any process: a range of lines of a file, a few row groups, a few
hundred images. A unit gives the same rows every time it is read, so an interrupted conversion can resume with the units that
are missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import pyarrow as pa

from hasten.core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Describe a part of a source that is converted in one piece.

    Attributes:
        path: The file or folder that the unit is part of.
        start: Start of the unit, counted in bytes, rows, row groups or files, depending on the reader.
        end: End of the unit (exclusive).
        files: File names, if the unit is a list of files.
        num_bytes: Approximate number of bytes to read, for the progress bar.
    """

    path: str
    start: int = 0
    end: int = 0
    files: tuple[str, ...] = ()
    num_bytes: int = 0


@dataclass(frozen=True)
class Bad:
    """Describe a record that cannot be used.

    Attributes:
        source: The file that contains the record.
        position: Position of the record in the file, in words.
        reason: Why the record cannot be used, without its content.
        record: The record as it was read, unless it is the whole file.
    """

    source: str
    position: str
    reason: str
    record: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Hold the user's choices. A reader uses those that apply to it.

    Attributes:
        columns: Columns to convert; empty converts all.
        schema: Serialized Arrow schema of the Arrow columns; empty lets the reader infer it.
        pixels: How images are stored: `bytes` stores the file, `decoded` stores `uint8 [height, width, 3]`.
        size: Height and width that decoded images are resized to; required if their sizes differ.
        encoding: Encoding of CSV and JSON files; empty detects it.
        delimiter: Delimiter of CSV files; empty detects it.
    """

    columns: tuple[str, ...] = ()
    schema: bytes = b""
    pixels: str = "bytes"
    size: tuple[int, int] | None = None
    encoding: str = ""
    delimiter: str = ""

    @property
    def arrow_schema(self) -> pa.Schema | None:
        """Return the chosen types; None if they are not chosen yet."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema)) if self.schema else None


Item = TypeVar("Item")
Rows: TypeAlias = "Mapping[str, Any] | pa.Table"


class Reader(ABC):
    """Read one kind of source.

    Attributes:
        name: Name for `--format`.
        words: What the reader accepts, for the help.
        needs: Additional package that must be installed; empty for none.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    needs: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def claims(cls, path: Path) -> bool:
        """Return True if this reader accepts a file or folder, judged by names and the first bytes."""

    @classmethod
    @abstractmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Split a source into units.

        Raises:
            DataError: The source is of another kind, or empty.
        """

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Infer the types of the Arrow columns from some units; None if all units are sure to have the same types."""
        return None

    @classmethod
    def remarks(cls, units: Sequence[Unit], choices: Choices) -> list[str]:
        """Describe what the reader decided about the source, for the user."""
        return []

    @classmethod
    @abstractmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the rows of a unit in batches of a few thousand, and its bad records."""


def spread(units: Sequence[Item], wanted: int = 3) -> list[Item]:
    """Select items from the first to the last, such as units to infer types from."""
    places = {round(place * (len(units) - 1) / (wanted - 1)) for place in range(wanted)}
    return [units[number] for number in sorted(places)]


def files_under(path: Path, endings: Sequence[str]) -> list[Path]:
    """Return the file itself, or all files in a folder with these suffixes, sorted. Hidden files are skipped.

    Raises:
        DataError: There is no such file.
    """
    if path.is_file():
        return [path]
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in endings
        and file.is_file()
        and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )
    if not files:
        raise DataError(f"{path} contains no {', '.join(endings)} files: check that it is the right folder.")
    return files


def whole_files(path: Path, endings: Sequence[str]) -> list[Unit]:
    """Return one unit per file."""
    return [Unit(path=str(file), num_bytes=file.stat().st_size) for file in files_under(path, endings)]


def has_files(path: Path, endings: Sequence[str]) -> bool:
    """Return True for a file with one of these suffixes, or a folder that contains one."""
    if path.is_file():
        return path.suffix.lower() in endings
    return path.is_dir() and any(file.suffix.lower() in endings for file in path.rglob("*"))


class FileFolder(Reader):
    """Read a folder of files, one row per file.

    Attributes:
        endings: Suffixes of the files.
    """

    endings: ClassVar[tuple[str, ...]]
    unit_files: ClassVar[int] = 512

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffixes of the files."""
        return has_files(path, cls.endings)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return units of a few hundred files."""
        files = files_under(path, cls.endings)
        root = path if path.is_dir() else path.parent
        groups = [files[start : start + cls.unit_files] for start in range(0, len(files), cls.unit_files)]
        return [
            Unit(
                path=str(root),
                files=tuple(file.relative_to(root).as_posix() for file in group),
                num_bytes=sum(file.stat().st_size for file in group),
            )
            for group in groups
        ]


def folder_of(name: str) -> str:
    """Return the name of the folder that contains a file, used as its label; empty at the top level."""
    return name.rsplit("/", 2)[-2] if "/" in name else ""


def parts_of(
    rows: Iterable[tuple[int, tuple[Any, ...]] | Bad], *, most_rows: int = 64, most_bytes: int = 2**26
) -> Iterator[list[tuple[Any, ...]] | Bad]:
    """Collect rows, each with its size in bytes, into lists of bounded size. Bad records are passed on."""
    part: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        if isinstance(row, Bad):
            yield row
            continue
        part.append(row[1])
        size += row[0]
        if len(part) >= most_rows or size >= most_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part
