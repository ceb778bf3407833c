"""Call a function in a forked copy of this process: nothing remains of it but what it returns."""

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
    """The function raised, its process was killed, or it took too long."""


def run_in_fork(task: Callable[[], T], *, limit_s: float) -> tuple[T, bool]:
    """What `task` returns in a forked copy of this process, and whether it printed anything there.

    Args:
        task: Returns something that can be pickled. Nothing it changes or prints is seen in this process.
        limit_s: The copy is killed after so many seconds.

    Raises:
        ForkError: It raised, died or took too long; says which.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, as loader workers do too
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
        with suppress(ChildProcessError):  # a script may collect its children itself
            os.waitpid(process, 0)
    if data is None:
        raise ForkError(f"it took more than {limit_s:.0f} s")
    if not data:
        raise ForkError("it ended the process")
    error, value, printed = pickle.loads(data)  # noqa: S301 - written by our own copy
    if error:
        raise ForkError(error)
    return value, printed


def _work(task: Callable[[], Any], writer: int) -> NoReturn:
    """Be the copy. It never returns, and runs no handler and no finalizer of the script."""
    try:
        gc.disable()  # what is collected here would shut down the loader workers of the script
        prints = _silence()
        torch.set_num_threads(1)  # the threads of the parent's parallel regions are not here
        try:
            answer = ("", task(), False)
        except Exception as error:  # noqa: BLE001 - told in the process that asked
            answer = (f"{type(error).__name__}: {error}", None, False)
        sys.stdout.flush()
        data = pickle.dumps((*answer[:2], os.lseek(prints, 0, os.SEEK_CUR) > 0))
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _silence() -> int:
    """Send what is printed to a file in memory, and what is complained of nowhere."""
    prints, nowhere = os.memfd_create("prints"), os.open(os.devnull, os.O_RDWR)
    for ours, theirs in ((nowhere, 0), (prints, 1), (nowhere, 2)):
        os.dup2(ours, theirs)
    sys.stdout = os.fdopen(os.dup(prints), "w")
    sys.stderr = os.fdopen(os.dup(nowhere), "w")
    return prints


def _read(reader: int, limit_s: float) -> bytes | None:
    """Everything until the other end is closed; None where that takes too long."""
    poll, end, data = select.poll(), monotonic() + limit_s, b""
    poll.register(reader, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(max(end - monotonic(), 0.0) * 1000.0):
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return data
        data += part
