"""The OpenMP library that torch's operators use, and what is set on each of its threads."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from hasten.core.system import mapping_at, read_text

_MAPS = Path("/proc/self/maps")
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)\b[^/]*$")


def read_openmp() -> tuple[str, str]:
    """Return the path of the OpenMP library that torch's operators use, and how it was found; empty if none was found."""
    if not torch.backends.openmp.is_available():
        return "", "this torch was built without OpenMP"
    # Other packages, such as scikit-learn, load their own OpenMP libraries, which torch does not use. Torch's library is the
    # one with globally visible symbols.
    entry = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if entry is not None and (path := mapping_at(ctypes.cast(entry, ctypes.c_void_p).value or 0)):
        return path, "where this process finds GOMP_parallel"
    for line in read_text(_MAPS).splitlines():
        if _OPENMP.search(line):
            return line[line.index("/") :], "mapped into this process"
    return "", f"no OpenMP library in {_MAPS}"


def take_denormals_for_zero(*, on: bool) -> bool:
    """Set whether this thread and its OpenMP threads treat denormal numbers as zero. Return False if unsupported.

    Each thread has its own flag, which it inherits when it is created.
    """
    if not torch.set_flush_denormal(on):
        return False
    on_every_thread(lambda: torch.set_flush_denormal(on))
    return True


def count_denormals_kept(total: int) -> int:
    """Double the smallest float32 number `total` times on all threads, and return how often the result is not zero."""
    smallest = torch.ones(total, dtype=torch.int32).view(torch.float32)
    return int(torch.count_nonzero((smallest * 2.0).view(torch.int32)))


def on_every_thread(act: Callable[[], object]) -> int:
    """Run `act` on this thread and on its OpenMP threads, and return the number of threads.

    `act` must not raise. `GOMP_parallel` enters a parallel region in GNU's OpenMP library, and also in LLVM's and Intel's,
    which provide it for programs compiled with GCC.
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
