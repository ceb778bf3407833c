"""The bytes of a store's files, mapped into memory: the page cache of the system is the only copy.

A `Source` says where the files come from. For a folder of this machine they are mapped as they are; a remote source maps
a local file that it fills as parts are asked for (`hasten.data.remote`). Whoever reads asks for a range first (`need`),
so that the reader knows neither.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from hasten.core.errors import CorruptError, DataError
from hasten.data.store.layout import MANIFEST, ShardFile

_POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ (5.14 and newer), which Python has no name for: enter a range into the page table at once."""


_advise = ctypes.CDLL(None).madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapped(ABC):
    """One file of a store, mapped for reading.

    Attributes:
        view: All its bytes, [bytes]; valid as far as they were asked for.
    """

    view: memoryview

    def hint(self, start: int, end: int) -> None:  # noqa: B027  from afar, parts are fetched when they are needed
        """Have the system begin to read a range that will be needed, where that is of use; nobody waits."""

    @abstractmethod
    def need(self, start: int, end: int) -> None:
        """Make the bytes from `start` to `end` ready to be read.

        Raises:
            GoneError: They cannot be had.
            CorruptError: They are not what was written.
        """


class Source(ABC):
    """Where the files of a store come from. It may be sent to other processes."""

    @abstractmethod
    def manifest(self, version: int | None) -> str:
        """The text of a manifest: of a version, or of the newest one.

        Raises:
            DataError: There is no such store or version.
        """

    @abstractmethod
    def open(self, file: ShardFile) -> Mapped:
        """Map a file.

        Raises:
            CorruptError: It is missing or has another size.
        """

    @property
    @abstractmethod
    def where(self) -> str:
        """The store's place, as a person would name it."""

    @property
    def is_remote(self) -> bool:
        """Whether reading ahead pays, because files come from afar."""
        return False


class LocalMap(Mapped):
    """A file of this machine."""

    def __init__(self, path: Path, file: ShardFile) -> None:
        self._path = path
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise CorruptError(
                f"{path} is missing, although the manifest names it: restore it, or convert the source again."
            ) from error
        except OSError as error:
            raise DataError(f"{path} cannot be opened ({error.strerror}): check its permissions.") from error
        try:
            size = os.fstat(handle).st_size
            if size != file.num_bytes:
                raise CorruptError(
                    f"{path} has {size} bytes, the manifest says {file.num_bytes}: it was cut or changed. Restore it, or "
                    f"convert the source again."
                )
            mapped = mmap.mmap(handle, size, prot=mmap.PROT_READ) if size else b""
        finally:
            os.close(handle)  # the map keeps the file; an open handle for each shard would run into the system's limit
        self.view = memoryview(mapped)
        self._address = np.frombuffer(mapped, np.uint8).ctypes.data

    def need(self, start: int, end: int) -> None:
        """Have the system read a range, while other threads go on: Python's own `madvise` would hold them up."""
        if self._advise(start, end, _POPULATE_READ):  # an older kernel: pages are entered when they are touched
            self.hint(start, end)

    def hint(self, start: int, end: int) -> None:
        """Have the system begin to read a range; nobody waits."""
        self._advise(start, end, mmap.MADV_WILLNEED)

    def _advise(self, start: int, end: int, advice: int) -> int:
        first = start - start % mmap.PAGESIZE
        return int(_advise(self._address + first, end - first, advice)) if end > start else 0


class Folder(Source):
    """A store in a folder of this machine.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def manifest(self, version: int | None) -> str:
        """The text of a manifest."""
        name = MANIFEST if version is None else version_path(version)
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise DataError(self._missing(version)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self._path / name} cannot be read: {error}") from error

    def open(self, file: ShardFile) -> Mapped:
        """Map a file of the folder."""
        return LocalMap(self._path / file.path, file)

    @property
    def where(self) -> str:
        """The folder's path."""
        return str(self._path)

    def _missing(self, version: int | None) -> str:
        if not self._path.exists():
            return f"there is no {self._path}: give the folder that `hasten data convert` wrote."
        if version is None:
            return (
                f"{self._path} is no store: it has no {MANIFEST}. Make one with `hasten data convert SOURCE {self._path}`."
            )
        have = sorted(int(path.stem) for path in (self._path / "versions").glob("*.json"))
        return f"{self._path} has no version {version}; it has {have}."


def version_path(version: int) -> str:
    """Where the manifest of a version lies within its store."""
    return f"versions/{version:06d}.json"
