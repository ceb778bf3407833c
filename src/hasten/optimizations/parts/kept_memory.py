"""Make glibc keep freed memory: in this process, or from within a script, as the source of a function that it calls.

glibc gives the end of its heap back when more than a threshold is free there, and requests it again at the next operation;
the kernel clears every page of it. The threshold follows the largest separate mapping that was freed. Steps in 16 bits free
smaller blocks than the plain job and may stay above the threshold, so that a part of their gain goes to the kernel.
"""

from __future__ import annotations

import ctypes

from hasten.core.source_edits import SourceEdits
from hasten.core.system import glibc_version, read_c_library

TOP_PAD_BYTES = 128 * 2**20
"""Bytes that glibc requests beyond what it needs, so that it requests memory rarely."""
_OPTIONS = ((-4, 0), (-1, -1), (-2, TOP_PAD_BYTES))
"""Options of mallopt and their values, see malloc.h: no separate mappings, no trimming, and the bytes above."""
_SOURCE = f"""\
def _keep_freed_memory():  # glibc would return it to the system, and request it again
    mallopt = getattr({{ctypes.CDLL}}(None), "mallopt", None)
    for option, value in {_OPTIONS} if mallopt else ():  # see malloc.h: mmaps, trimming, top pad
        mallopt(option, value)


if {{sys.platform}} == "linux":
    _keep_freed_memory()
"""


def pays_on_this_machine() -> bool:
    """Return whether tensors are in glibc's memory: on Linux without an accelerator."""
    import torch  # noqa: PLC0415 - allocator.py needs none

    return bool(glibc_version(read_c_library()[0])) and not torch.accelerator.is_available()


def keep_freed_memory() -> None:
    """Let this process keep freed memory until it ends: glibc cannot go back to a threshold that follows what is freed."""
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in _OPTIONS:
        mallopt(option, value)


def write_kept_memory(script: SourceEdits) -> str:
    """Let a script keep freed memory from its start. Returns the change and its place."""
    return script.at_the_start(*_SOURCE.splitlines(), said="freed memory is kept")
