"""Suspend, resume and kill processes together with all their descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

import psutil

FREEZE_LIMIT_S = 5.0


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def tell(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def freeze(pids: list[int]) -> None:
    """Suspend the processes, and wait until each is suspended."""
    tell(pids, signal.SIGSTOP)
    deadline = monotonic() + FREEZE_LIMIT_S
    while monotonic() < deadline and any(state(pid) not in "TtZX" for pid in pids):
        sleep(0.001)


def thaw(pids: list[int]) -> None:
    """Resume the processes."""
    tell(pids, signal.SIGCONT)


@contextmanager
def unwinding_when_told_to_end() -> Iterator[None]:
    """Treat SIGTERM like `sys.exit` meanwhile, so that child processes are ended too; they may be suspended and orphaned."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return the exit code; None if the process exceeded the limit and was killed, as also on interrupts."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            end_tree(process.pid)
            process.wait()


def end_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    tell(tree(pid), signal.SIGKILL)


def state(pid: int) -> str:
    """Return the kernel's letter for a process's state; X if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]
