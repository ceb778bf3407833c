"""The moments at which another process begins, or this one may end: what runs in the background must be done before.

At an ordinary end, and at an exception that nobody catches, exit handlers run, and need none of this.
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

MOMENTS: tuple[tuple[Any, str], ...] = (
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
"""With `multiprocessing`, all ways of the standard library lead through these; what C code does by itself does not."""

Finish = Callable[[], None]
Function = Callable[..., Any]


class _Here(threading.local):
    """Whether this thread starts a loader's worker just now."""

    worker = False


def before_handing_over(patches: Patches, finish: Finish, *, loader_workers: bool) -> None:
    """Call `finish` first at each of these moments.

    Args:
        patches: Takes it off again.
        finish: Waits for what runs in the background; must not raise.
        loader_workers: Also before a worker of a loader is started, which reads samples and nothing else.
    """
    here = _Here()
    for owner, name in MOMENTS:
        patches.put(owner, name, functools.partial(_after, here, finish))
    start = functools.partial(_starting, here, finish, loader_workers)
    patches.put(multiprocessing.process.BaseProcess, "start", start)


def _after(here: _Here, finish: Finish, original: Function) -> Function:
    @functools.wraps(original)
    def handing_over(*args: Any, **kwargs: Any) -> Any:
        if not here.worker:
            finish()
        return original(*args, **kwargs)

    return handing_over


def _starting(here: _Here, finish: Finish, loader_workers: bool, original: Function) -> Function:  # noqa: FBT001 - bound by position
    @functools.wraps(original)
    def starting(process: Any) -> Any:
        here.worker = not loader_workers and getattr(process, "_target", None) is _worker_loop
        try:
            if not here.worker:
                finish()
            return original(process)
        finally:
            here.worker = False

    return starting
