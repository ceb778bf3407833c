"""Define readers of sources: they split a source into units of work and return the rows of each unit.

Each unit can be read independently, in any order and in any process: a range of lines of a file, a few row groups, a few
hundred images. A unit gives the same rows every time it is read, so an interrupted conversion can resume with the units that
are missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import pyarrow as pa

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.convert.listing import Listing, has_files, is_utf8, listed
from hasten.data.convert.reasons import reason_of

Loaded = TypeVar("Loaded")
MAX_FILE_BYTES = 2**30
"""Maximum size of a file that is one record."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Describe a part of a source that is converted in one piece.

    Attributes:
        path: The file or folder that the unit is part of.
        start: Start of the unit, counted in bytes, rows, row groups or files, depending on the reader.
        end: End of the unit (exclusive).
        files: File names, if the unit is a list of files.
        num_bytes: Approximate number of bytes to read, for the progress bar.
        problem: Why the file cannot be read; empty if it can.
        notes: What was left out when the source was listed, with counts.
        values: Names and values in the names of its folders, such as `year=2020`.
    """

    path: str
    start: int = 0
    end: int = 0
    files: tuple[str, ...] = ()
    num_bytes: int = 0
    problem: str = ""
    notes: tuple[tuple[str, int], ...] = ()
    values: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class Bad:
    """Describe a record that cannot be used.

    Attributes:
        source: The file that contains the record.
        position: Position of the record in the file, in words.
        reason: Why the record cannot be used, without its content.
        record: The record as it was read, unless it is the whole file.
        is_rest: True if all records after it are lost as well.
    """

    source: str
    position: str
    reason: str
    record: bytes = b""
    is_rest: bool = False


@dataclass(frozen=True)
class Note:
    """Tell the user about parts of a source that were skipped or interpreted.

    Attributes:
        words: What they are and what was done, to be followed by their number; without content.
        count: Their number.
    """

    words: str
    count: int = 1


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
        grid: Rows and columns that fields are regridded to; None keeps their grid.
        person: Column without which a conversation is bad; empty for none.
    """

    columns: tuple[str, ...] = ()
    schema: bytes = b""
    pixels: str = "bytes"
    size: tuple[int, int] | None = None
    encoding: str = ""
    delimiter: str = ""
    grid: tuple[int, int] | None = None
    person: str = ""

    @property
    def arrow_schema(self) -> pa.Schema | None:
        """Return the chosen types; None if they are not chosen yet."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema)) if self.schema else None


Item = TypeVar("Item")
Rows: TypeAlias = "Mapping[str, Any] | pa.Table"
ReadPart: TypeAlias = "Rows | Bad | Note"


class Reader(ABC):
    """Read one kind of source.

    Attributes:
        name: Name for `--format`.
        words: What the reader accepts, for the help.
        needs: Additional package that must be installed; empty for none.
        reads_partitions: True if values in the names of folders become columns. All rows must be Arrow tables.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    needs: ClassVar[str] = ""
    reads_partitions: ClassVar[bool] = False

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
    def facts(cls, units: Sequence[Unit], choices: Choices) -> dict[str, Any]:
        """Return text and numbers about the rows that a reader of the store needs, such as the names of channels."""
        return {}

    @classmethod
    @abstractmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[ReadPart]:
        """Return the rows of a unit in batches of a few thousand, its bad records, and notes.

        Raises:
            BrokenFileError: The rest of the unit cannot be read. Any exception that is not a `HastenError` means the same.
            HastenError: The conversion cannot continue.
        """


def spread(units: Sequence[Item], wanted: int = 3) -> list[Item]:
    """Select items from the first to the last, such as units to infer types from."""
    places = {round(place * (len(units) - 1) / max(wanted - 1, 1)) for place in range(wanted)}
    return [units[number] for number in sorted(places)]


def sampled(units: Sequence[Unit], load: Callable[[Unit], Loaded], wanted: int = 3) -> list[Loaded]:
    """Return what is loaded from units spread over the source. Units that cannot be read are left out.

    Raises:
        DataError: None of the units can be read; says why for the first.
    """
    chosen = spread(units, wanted)
    loaded: list[Loaded] = []
    problem = ""
    for number, unit in enumerate(chain(chosen, units)):
        if loaded and number >= len(chosen):
            break
        try:
            loaded.append(load(unit))
        except Exception as error:  # noqa: BLE001  a damaged file ends no conversion; `reason_of` raises what does
            reason = reason_of(error)
            problem = problem or (str(error) if isinstance(error, BrokenFileError) else f"{unit.path}: {reason}")
    if not loaded:
        raise DataError(problem)
    return loaded


def units_of(path: Path, endings: Sequence[str], parts: Callable[[Path], Iterable[Unit]]) -> list[Unit]:
    """Return the units of all files of a source. A file that cannot be read is a unit with a problem.

    Args:
        path: A file or a folder.
        endings: Endings of the files, in lower case.
        parts: Returns the units of a file.

    Raises:
        DataError: There is no such file.
    """
    listing = listed(path, endings)
    units = [Unit(path=str(file), problem=reason) for file, reason in listing.problems]
    for file in listing.files:
        try:
            made = list(parts(file))
        except Exception as error:  # noqa: BLE001  a damaged file ends no conversion; `reason_of` raises what does
            made = [Unit(path=str(file), problem=reason_of(error))]
        listing.skipped["files without records"] += not made
        units += made
    return noted(units, listing)


def noted(units: list[Unit], listing: Listing) -> list[Unit]:
    """Add what was skipped in the listing to the first unit."""
    notes = tuple((words, count) for words, count in listing.skipped.items() if count)
    return [replace(units[0], notes=notes), *units[1:]] if units else units


def whole_files(path: Path, endings: Sequence[str]) -> list[Unit]:
    """Return one unit per file."""
    return units_of(path, endings, lambda file: [Unit(path=str(file), num_bytes=file.stat().st_size)])


def file_bytes(path: Path) -> bytes:
    """Read a file that is one record.

    Raises:
        ValueError: It is empty, or too large.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    if not size:
        raise ValueError("the file is empty")
    if size > MAX_FILE_BYTES:
        raise ValueError(f"the file is larger than {MAX_FILE_BYTES:,} bytes")
    return path.read_bytes()


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
        listing = listed(path, cls.endings)
        root = path if path.is_dir() else path.parent
        unnamed = [file for file in listing.files if not is_utf8(file.relative_to(root).as_posix())]
        problems = [*listing.problems, *((file, "its name is not UTF-8") for file in unnamed)]
        files = sorted(set(listing.files) - set(unnamed)) if unnamed else listing.files
        groups = [files[start : start + cls.unit_files] for start in range(0, len(files), cls.unit_files)]
        units = [
            Unit(
                path=str(root),
                files=tuple(file.relative_to(root).as_posix() for file in group),
                num_bytes=sum(size_of(file) for file in group),
            )
            for group in groups
        ]
        return noted([*units, *(Unit(path=str(file), problem=reason) for file, reason in problems)], listing)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it has vanished."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
