"""What a reader of sources is, and what it gives: units of work, and their rows.

A reader cuts a source into units that can be read on their own, in any order and in any process: a range of lines of a
file, some row groups, a few hundred images. Each unit gives the same rows whenever it is read, so that a conversion that
was killed goes on with the units that are missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from hasten.core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of a source that is converted at once.

    Attributes:
        path: The file, or the folder, that it is a part of.
        start: Where it begins: a byte, a row, a row group or a file, as the reader counts.
        end: Where it ends; not included.
        files: The files, where the unit is a list of them.
        num_bytes: About how much there is to read, for the progress bar.
    """

    path: str
    start: int = 0
    end: int = 0
    files: tuple[str, ...] = ()
    num_bytes: int = 0


@dataclass(frozen=True)
class Bad:
    """A record that cannot be used.

    Attributes:
        source: Its file.
        position: Where it stands there, in words.
        reason: Why it cannot be used; without its content.
        record: Itself, as it was read, where that is not the whole file.
    """

    source: str
    position: str
    reason: str
    record: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the user chose; a reader looks at what concerns it.

    Attributes:
        columns: Columns to keep; empty keeps all.
        schema: Types of the Arrow columns, as Arrow serializes it; empty leaves them to the reader.
        pixels: What becomes of images: `bytes` keeps the file's bytes, `decoded` makes `uint8 [height, width, 3]`.
        size: Height and width that decoded images are resized to; required where they differ.
    """

    columns: tuple[str, ...] = ()
    schema: bytes = b""
    pixels: str = "bytes"
    size: tuple[int, int] | None = None

    @property
    def arrow_schema(self) -> pa.Schema | None:
        """The types chosen; None where they are left open."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema)) if self.schema else None


Rows: TypeAlias = "Mapping[str, Any] | pa.Table"


class Reader(ABC):
    """One kind of source.

    Attributes:
        name: As given to `--format`.
        words: What it reads, for the help.
        needs: Package that must be installed, beside those of Hasten itself; empty for none.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    needs: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def claims(cls, path: Path) -> bool:
        """Whether a file or folder is of this kind; decided from names and the first bytes."""

    @classmethod
    @abstractmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Cut a source into units.

        Raises:
            DataError: It is not of this kind, or empty.
        """

    @classmethod
    def schema(cls, units: Sequence[Unit], choices: Choices) -> pa.Schema | None:
        """Types of the Arrow columns, from a look at some units; None where each unit is sure to give the same."""
        return None

    @classmethod
    @abstractmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """The rows of a unit, a few thousand at a time, and its bad records."""


def spread(units: Sequence[Unit], wanted: int = 3) -> list[Unit]:
    """Some units from the first to the last, to look for types in."""
    places = {round(place * (len(units) - 1) / (wanted - 1)) for place in range(wanted)}
    return [units[number] for number in sorted(places)]


def files_under(path: Path, endings: Sequence[str]) -> list[Path]:
    """The file itself, or all files below a folder that end so, sorted; hidden ones are left out.

    Raises:
        DataError: There is none.
    """
    if path.is_file():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in endings
        and file.is_file()
        and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )
    if not found:
        raise DataError(f"{path} holds no file that ends in {', '.join(endings)}: is it the right folder?")
    return found


def whole_files(path: Path, endings: Sequence[str]) -> list[Unit]:
    """A unit for each of these files."""
    return [Unit(path=str(file), num_bytes=file.stat().st_size) for file in files_under(path, endings)]


def has_files(path: Path, endings: Sequence[str]) -> bool:
    """Whether the path is such a file, or a folder that holds one."""
    if path.is_file():
        return path.suffix.lower() in endings
    return path.is_dir() and any(file.suffix.lower() in endings for file in path.rglob("*"))


class FileFolder(Reader):
    """A folder of files, a row each.

    Attributes:
        endings: Of the files.
    """

    endings: ClassVar[tuple[str, ...]]
    unit_files: ClassVar[int] = 512

    @classmethod
    def claims(cls, path: Path) -> bool:
        """By the files' endings."""
        return has_files(path, cls.endings)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Some hundred files each."""
        files = files_under(path, cls.endings)
        root = path if path.is_dir() else path.parent
        groups = [files[at : at + cls.unit_files] for at in range(0, len(files), cls.unit_files)]
        return [
            Unit(
                path=str(root),
                files=tuple(file.relative_to(root).as_posix() for file in group),
                num_bytes=sum(file.stat().st_size for file in group),
            )
            for group in groups
        ]


def folder_of(name: str) -> str:
    """The folder that a file lies in, which is its label; empty at the top."""
    return name.rsplit("/", 2)[-2] if "/" in name else ""
