"""Ask the system under Python: files of the kernel, the C library, allocators, OpenMP, the first environment.

An answer that decides something is a pair: the value, and the reason why it is that value. Nothing here runs at import.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

ALLOCATORS: Mapping[str, tuple[str, ...]] = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
    "jemalloc": ("libjemalloc.so.2",),
}
"""Allocators that can be preloaded: name -> file names of its library, the one to prefer first."""

_SELF = Path("/proc/self")
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)\b[^/]*$")


def read_text(path: Path) -> str:
    """The text of a file of the kernel; empty when it is not there or not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty when there is none."""
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


# What a process can be started with.


def library_folders(environ: Mapping[str, str]) -> list[Path]:
    """Where libraries usually lie: LD_LIBRARY_PATH, the Python environment's own folder, the system's."""
    own = [part for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    triple = f"{platform.machine()}-linux-gnu"
    usual = [f"{sys.prefix}/lib", "/usr/local/lib", f"/usr/lib/{triple}", f"/lib/{triple}", "/usr/lib64", "/usr/lib"]
    return [Path(folder) for folder in dict.fromkeys(own + usual)]


def read_allocators(folders: Iterable[Path]) -> tuple[tuple[str, ...], str]:
    """The libraries of ALLOCATORS that are installed, as paths, at most one an allocator; and where was looked."""
    looked = list(folders)
    found = []
    for names in ALLOCATORS.values():
        paths = (folder / name for name in names for folder in looked)
        found += [str(path) for path in paths if path.is_file()][:1]
    return tuple(found), f"{len(found)} of {', '.join(ALLOCATORS)} found in {', '.join(map(str, looked))}"


def read_c_library() -> tuple[str, str]:
    """The C library as `glibc 2.36`; empty where it is another, or does not tell."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or ""), "confstr CS_GNU_LIBC_VERSION"
    except (AttributeError, ValueError, OSError):
        return "", f"the C library of this {platform.system()} is not glibc"


def glibc_version(words: str) -> tuple[int, ...]:
    """`(2, 36)` of `glibc 2.36`; empty for another C library."""
    name, _, version = words.partition(" ")
    return tuple(int(part) for part in version.split(".") if part.isdecimal()) if name == "glibc" else ()


def read_openmp() -> tuple[str, str]:
    """The OpenMP library that torch's operators share their work out with, as a path; empty where there is none to see."""
    if not torch.backends.openmp.is_available():
        return "", "this torch was built without OpenMP"
    # Other packages bring libraries of their own (scikit-learn does), whose threads are none of torch's: torch's is the one
    # that all of the process can see.
    entry = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if entry is not None and (path := mapping_at(ctypes.cast(entry, ctypes.c_void_p).value or 0)):
        return path, "where this process finds GOMP_parallel"
    for line in read_text(_SELF / "maps").splitlines():
        if _OPENMP.search(line):
            return line[line.index("/") :], "mapped into this process"
    return "", f"no OpenMP library in {_SELF / 'maps'}"


# What this process was started with, and what came of it.


def started_with() -> Mapping[str, str]:
    """The environment this process was started with: what Python changed later is too late for the C library.

    Where the kernel does not show it (no /proc, or overwritten by a title), the environment as it is now.
    """
    found: dict[str, str] = {}
    for entry in read_text(_SELF / "environ").split("\0"):
        name, equals, value = entry.partition("=")
        if name.startswith("glibc.") and "GLIBC_TUNABLES" in found:  # up to glibc 2.38 it cuts its own variable in place
            found["GLIBC_TUNABLES"] += f":{entry}"
        elif equals:
            found[name] = value
    return found or os.environ


def mapping_at(address: int) -> str:
    """The file that is mapped at an address of this process (`/usr/lib/.../libc.so.6`); empty where none is."""
    for line in read_text(_SELF / "maps").splitlines():
        first, _, last = line.split(maxsplit=1)[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            return line[line.index("/") :] if "/" in line else ""
    return ""


def take_denormals_for_zero(*, on: bool) -> bool:
    """Have this thread and the OpenMP threads it leads take denormal numbers for zero, or not; False if they cannot.

    Each thread has a switch of its own, kept from when it was made.
    """
    if not torch.set_flush_denormal(on):
        return False
    on_every_thread(lambda: torch.set_flush_denormal(on))
    return True


def count_denormals_kept(total: int) -> int:
    """Double the smallest float32 number `total` times, on all threads; returns how often the result is not zero."""
    smallest = torch.ones(total, dtype=torch.int32).view(torch.float32)
    return int(torch.count_nonzero((smallest * 2.0).view(torch.int32)))


def on_every_thread(act: Callable[[], object]) -> int:
    """Run `act` on this thread and on the OpenMP threads it leads; returns how many threads that were.

    `act` must not raise. An OpenMP library enters a parallel region by `GOMP_parallel`: GNU's own, and LLVM's and
    Intel's for the sake of programs that GNU's compiler built.
    """
    library, count = read_openmp()[0], torch.get_num_threads()
    enter = getattr(ctypes.CDLL(library), "GOMP_parallel", None) if library and count > 1 else None
    if enter is None:
        act()
        return 1
    threads: set[int] = set()

    def body(_: int | None) -> None:
        act()
        threads.add(threading.get_ident())

    enter(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(body), None, ctypes.c_uint(count), ctypes.c_uint(0))
    return len(threads)
