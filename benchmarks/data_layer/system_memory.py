"""Measure the memory that the system uses for files, and the private memory of processes.

A mapped or read file stays in the system's page cache, which is released when memory is needed. Memory that a process cannot
release is anonymous or shared. Pages shared by several processes are divided between them (Linux, `smaps_rollup`:
`Pss_Anon`, `Pss_Shmem`). Clean pages of a mapped store, which others may also use, are not counted.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ENDED = 137
"""Exit code of a process that exceeded its limit, equal to that of a process killed by the system for its memory."""
_PARTS = ("Pss_Anon:", "Pss_Shmem:")


def private_bytes(process: psutil.Process) -> int:
    """Return the private memory of a process and its children."""
    return sum(_of(part.pid) for part in (process, *process.children(recursive=True)))


def _of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (OSError, ProcessLookupError):  # the process has just ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(_PARTS))


class Peak:
    """The peak of private memory.

    Attributes:
        num_bytes: Peak of this process and its children together.
    """

    def __init__(self) -> None:
        self.num_bytes = 0


@contextmanager
def watched(every_s: float = 0.02, limit_bytes: int | None = None) -> Iterator[Peak]:
    """Monitor the private memory; a process that exceeds the limit exits at once."""
    peak, process, ended = Peak(), psutil.Process(), threading.Event()

    def watch() -> None:
        while not ended.is_set():
            peak.num_bytes = max(peak.num_bytes, private_bytes(process))
            if limit_bytes is not None and peak.num_bytes > limit_bytes:
                os._exit(ENDED)
            time.sleep(every_s)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def all_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return all files below some of the names in a folder."""
    found = []
    for path in (folder / name for name in names):
        found += [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return found


def warm(files: Iterable[Path]) -> None:
    """Load files into the page cache."""
    buffer = bytearray(2**20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(files: Iterable[Path]) -> float:
    """Evict files from the page cache; return the fraction still there: 1 for a file system in memory."""
    there = total = 0
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found, pages = _resident(file.fileno())
            there, total = there + found, total + pages
    return there / total if total else 0.0


def _resident(handle: int) -> tuple[int, int]:
    """Return the number of pages of a file in memory, and of all its pages; uses `mincore`."""
    size = os.fstat(handle).st_size
    if not size:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if address in {None, ctypes.c_void_p(-1).value}:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        if libc.mincore(address, size, flags):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        libc.munmap(address, size)
    return sum(flag & 1 for flag in flags), pages
