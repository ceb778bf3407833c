"""What the system holds of files, and what processes hold for themselves.

A file that is mapped or read stays in the system's page cache, which is given back when memory is needed. What a process
cannot give back is anonymous or shared memory; of pages that several processes share, each is charged its part (Linux,
`smaps_rollup`: `Pss_Anon`, `Pss_Shmem`). So clean pages of a mapped store, which others may have too, are charged to nobody.
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
"""Exit code of a process that held more than it may: that of one that the system killed for it."""
_PARTS = ("Pss_Anon:", "Pss_Shmem:")


def private_bytes(process: psutil.Process) -> int:
    """Memory that a process and its children hold for themselves."""
    return sum(_of(part.pid) for part in (process, *process.children(recursive=True)))


def _of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (OSError, ProcessLookupError):  # it has just ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(_PARTS))


class Peak:
    """The most private memory that was seen.

    Attributes:
        num_bytes: Of this process and its children together.
    """

    def __init__(self) -> None:
        self.num_bytes = 0


@contextmanager
def watched(every_s: float = 0.02, limit_bytes: int | None = None) -> Iterator[Peak]:
    """Look at the private memory all the while; a process that holds more than the limit ends at once."""
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
    """The files below some of the names in a folder."""
    found = []
    for path in (folder / name for name in names):
        found += [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return found


def warm(files: Iterable[Path]) -> None:
    """Have files in the page cache."""
    buffer = bytearray(2**20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(files: Iterable[Path]) -> float:
    """Have files out of the page cache; what share of them is still there: all of a file system in memory is."""
    there = total = 0
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found, pages = _resident(file.fileno())
            there, total = there + found, total + pages
    return there / total if total else 0.0


def _resident(handle: int) -> tuple[int, int]:
    """Pages of a file in memory, and all of them; by `mincore`."""
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
