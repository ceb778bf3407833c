"""Detect whether a run is active in a folder. It holds a lock there, which the system releases when the run ends or dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from hasten.core.errors import DataError

_BY_RANK = ".running.{}"
LOCK = _BY_RANK.format(0)
"""The lock file of rank 0."""
_PATIENCE_S = 30.0
"""Seconds to wait for a folder that another process has locked."""


def hold_folder(run: Path, rank: int, say: Callable[[str], None]) -> int:
    """Lock the run's folder, and return the file descriptor of the lock.

    After a run is killed, its folder stays locked until its last checkpoint is written.

    Raises:
        DataError: Another run has locked it.
    """
    run.mkdir(parents=True, exist_ok=True)
    handle = os.open(run / _BY_RANK.format(rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = monotonic() + _PATIENCE_S
    waiting = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if monotonic() > until:
                os.close(handle)
                raise DataError(f"Another run is active in {run}: wait for it, or choose another folder (--out).") from error
            if not waiting:
                say(f"waiting for another run in {run}, or for the last checkpoint of a killed run")
                waiting = True
            sleep(0.02)
        else:
            return handle


def is_running(run: Path) -> bool:
    """Whether a run is active in the folder, on this machine or on one that shares its disk."""
    try:
        handle = os.open(run / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system does not support locks
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def kept_from_running(run: Path) -> Iterator[bool]:
    """Prevent runs from starting in the folder during the block. Yield False if a run is already active there."""
    handle = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)
