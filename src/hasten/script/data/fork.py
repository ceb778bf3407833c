"""Call a function in a forked copy of this process. Only its return value remains."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn, TypeVar

import torch

from hasten.core.errors import HastenError

T = TypeVar("T")


class ForkError(HastenError):
    """The function raised an error, its process was killed, or it took too long."""


def run_in_fork(task: Callable[[], T], *, limit_s: float) -> tuple[T, bool]:
    """Return what `task` returns in a forked copy of this process, and whether it printed anything.

    Args:
        task: Returns an object that can be pickled. Its side effects and output are not visible in this process.
        limit_s: Seconds after which the copy is killed.

    Raises:
        ForkError: The task raised an error, its process died, or it took too long. The message says which.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking in a multi-threaded process
        process = os.fork()
    if process == 0:
        _work(task, writer)
    os.close(writer)
    try:
        data = _read(reader, limit_s)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):  # the script may wait for its children itself
            os.waitpid(process, 0)
    if data is None:
        raise ForkError(f"it took more than {limit_s:.0f} s")
    if not data:
        raise ForkError("it ended the process")
    error, value, printed = pickle.loads(data)  # noqa: S301 - written by a copy of this process
    if error:
        raise ForkError(error)
    return value, printed


def _work(task: Callable[[], Any], writer: int) -> NoReturn:
    """Run the task in the copy. Never returns, and runs no exit handler or finalizer of the script."""
    try:
        gc.disable()  # collecting garbage here would shut down loader workers of the script
        prints = _silence()
        torch.set_num_threads(1)  # the parent's worker threads do not exist in a forked process
        try:
            answer = ("", task(), False)
        except Exception as error:  # noqa: BLE001 - raised in the parent process
            answer = (f"{type(error).__name__}: {error}", None, False)
        sys.stdout.flush()
        data = pickle.dumps((*answer[:2], os.lseek(prints, 0, os.SEEK_CUR) > 0))
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _silence() -> int:
    """Redirect standard output to a file in memory, and discard standard error."""
    prints, nowhere = os.memfd_create("prints"), os.open(os.devnull, os.O_RDWR)
    for ours, theirs in ((nowhere, 0), (prints, 1), (nowhere, 2)):
        os.dup2(ours, theirs)
    sys.stdout = os.fdopen(os.dup(prints), "w")
    sys.stderr = os.fdopen(os.dup(nowhere), "w")
    return prints


def _read(reader: int, limit_s: float) -> bytes | None:
    """Read until the other end is closed. Returns None on timeout."""
    poll, end, data = select.poll(), monotonic() + limit_s, b""
    poll.register(reader, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(max(end - monotonic(), 0.0) * 1000.0):
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return data
        data += part
