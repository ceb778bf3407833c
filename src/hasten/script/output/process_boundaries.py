"""Finish background work before this process starts another one, sends a signal or exits.

A normal exit and an uncaught exception run exit handlers, so they need no special handling.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.worker import _worker_loop

from hasten.script.patches import Patches

BOUNDARIES: tuple[tuple[Any, str], ...] = (
    (subprocess.Popen, "__init__"),
    (os, "fork"),
    (os, "forkpty"),
    (os, "system"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "execv"),
    (os, "execve"),
    (os, "kill"),
    (os, "abort"),
    (os, "_exit"),
)
"""All functions of the standard library that do so, together with `multiprocessing`. Native code is not covered."""

Function = Callable[..., Any]


class _Starting(threading.local):
    """Whether this thread is starting a loader worker, which reads samples and no other files."""

    loader_worker = False


def finish_before_boundaries(patches: Patches, finish: Callable[[], None]) -> None:
    """Call `finish` before each boundary, except the start of a `DataLoader` worker.

    Args:
        patches: Installs and removes the wrappers.
        finish: Waits for the background work. Must not raise.
    """
    starting = _Starting()
    for owner, name in BOUNDARIES:
        patches.put(owner, name, functools.partial(_finishing, starting, finish))
    patches.put(multiprocessing.process.BaseProcess, "start", functools.partial(_finishing_start, starting, finish))


def _finishing(starting: _Starting, finish: Callable[[], None], original: Function) -> Function:
    @functools.wraps(original)
    def boundary_seam(*args: Any, **kwargs: Any) -> Any:
        if not starting.loader_worker:
            finish()
        return original(*args, **kwargs)

    return boundary_seam


def _finishing_start(starting: _Starting, finish: Callable[[], None], original: Function) -> Function:
    @functools.wraps(original)
    def start_seam(process: Any) -> Any:
        starting.loader_worker = getattr(process, "_target", None) is _worker_loop
        try:
            if not starting.loader_worker:
                finish()
            return original(process)
        finally:
            starting.loader_worker = False

    return start_seam
