"""Map the files of a store into memory, so that the system's page cache holds the only copy.

A `Source` provides the files. Files in a local folder are mapped directly. A remote source maps a local file and fills it
as parts are requested (`hasten.data.remote`). Readers request a range before they read it (`need`), so they work with both.
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
"""Linux's MADV_POPULATE_READ (5.14 and newer), missing in Python's `mmap`: add a range to the page table at once."""


_advise = ctypes.CDLL(None).madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapped(ABC):
    """Map one file of a store for reading.

    Attributes:
        view: All bytes of the file, [bytes]. Only requested ranges are valid.
    """

    view: memoryview

    def hint(self, start: int, end: int) -> None:  # noqa: B027  remote sources fetch parts when they are needed
        """Ask the system to start reading a range that will be needed, without waiting."""

    @abstractmethod
    def need(self, start: int, end: int) -> None:
        """Make the bytes from `start` to `end` readable.

        Raises:
            GoneError: The bytes cannot be fetched.
            CorruptError: The bytes are not as they were written.
        """


class Source(ABC):
    """Provide the files of a store. A source can be sent to other processes."""

    @abstractmethod
    def manifest(self, version: int | None) -> str:
        """Return the content of a manifest: of the given version, or of the newest one.

        Raises:
            DataError: There is no such store or version.
        """

    @abstractmethod
    def open(self, file: ShardFile) -> Mapped:
        """Map a file.

        Raises:
            CorruptError: The file is missing or has the wrong size.
        """

    @property
    @abstractmethod
    def where(self) -> str:
        """Return the store's location for messages."""

    @property
    def is_remote(self) -> bool:
        """Return True if files are remote, so that reading ahead pays off."""
        return False


class LocalMap(Mapped):
    """Map a local file."""

    def __init__(self, path: Path, file: ShardFile) -> None:
        self._path = path
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise CorruptError(
                f"{path} is missing, although the manifest lists it: restore it, or convert the source again."
            ) from error
        except OSError as error:
            raise DataError(f"{path} cannot be opened ({error.strerror}): check its permissions.") from error
        try:
            size = os.fstat(handle).st_size
            if size != file.num_bytes:
                raise CorruptError(
                    f"{path} has {size} bytes instead of {file.num_bytes}: it was truncated or modified. Restore it, or "
                    f"convert the source again."
                )
            mapped = mmap.mmap(handle, size, prot=mmap.PROT_READ) if size else b""
        finally:
            os.close(handle)  # the map keeps the file open; one handle per shard would exceed the system's limit
        self.view = memoryview(mapped)
        self._address = np.frombuffer(mapped, np.uint8).ctypes.data

    def need(self, start: int, end: int) -> None:
        """Read a range now, while other threads keep running. Python's own `madvise` would block them."""
        if self._advise(start, end, _POPULATE_READ):  # an older kernel: pages are mapped on access
            self.hint(start, end)

    def hint(self, start: int, end: int) -> None:
        """Ask the system to start reading a range, without waiting."""
        self._advise(start, end, mmap.MADV_WILLNEED)

    def _advise(self, start: int, end: int, advice: int) -> int:
        first = start - start % mmap.PAGESIZE
        return int(_advise(self._address + first, end - first, advice)) if end > start else 0


class Folder(Source):
    """Provide the files of a store in a local folder.

    Args:
        path: Folder of the store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def manifest(self, version: int | None) -> str:
        """Return the content of a manifest."""
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
        """Return the folder's path."""
        return str(self._path)

    def _missing(self, version: int | None) -> str:
        if not self._path.exists():
            return f"{self._path} does not exist: use the folder that `hasten data convert` wrote."
        if version is None:
            return (
                f"{self._path} is not a store: it has no {MANIFEST}. Create one with `hasten data convert SOURCE "
                f"{self._path}`."
            )
        have = sorted(int(path.stem) for path in (self._path / "versions").glob("*.json"))
        return f"{self._path} has no version {version}; it has the versions {have}."


def version_path(version: int) -> str:
    """Return the path of a version's manifest within its store."""
    return f"versions/{version:06d}.json"
