"""Processes with all that they started: frozen, thawed, ended."""

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
    """A process and all that descends from it; empty where it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def tell(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def freeze(pids: list[int]) -> None:
    """Stop them, and wait until each stands still."""
    tell(pids, signal.SIGSTOP)
    deadline = monotonic() + FREEZE_LIMIT_S
    while monotonic() < deadline and any(state(pid) not in "TtZX" for pid in pids):
        sleep(0.001)


def thaw(pids: list[int]) -> None:
    """Let them go on."""
    tell(pids, signal.SIGCONT)


@contextmanager
def unwinding_when_told_to_end() -> Iterator[None]:
    """Take SIGTERM as `sys.exit` meanwhile, so that what was started is ended too: it may stand frozen, and alone."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Its exit code; None where it took longer and was ended with all that it started, as it is where we are interrupted."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            end_tree(process.pid)
            process.wait()


def end_tree(pid: int) -> None:
    """End a process and all that it started."""
    tell(tree(pid), signal.SIGKILL)


def state(pid: int) -> str:
    """The letter that the kernel has for what a process does; X where it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]
