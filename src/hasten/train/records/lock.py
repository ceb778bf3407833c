"""Detect whether a run is active in a folder. It holds a lock there, which the system releases when the run ends or dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from hasten.core.errors import DataError
from hasten.core.lock import hold, is_held

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
    until = monotonic() + _PATIENCE_S
    waiting = False
    while (handle := hold(run / _BY_RANK.format(rank))) is None:
        if monotonic() > until:
            raise DataError(f"Another run is active in {run}: wait for it, or choose another folder (--out).")
        if not waiting:
            say(f"waiting for another run in {run}, or for the last checkpoint of a killed run")
            waiting = True
        sleep(0.02)
    return handle


def is_running(run: Path) -> bool:
    """Whether a run is active in the folder, on this machine or on one that shares its disk."""
    return is_held(run / LOCK)


@contextmanager
def kept_from_running(run: Path) -> Iterator[bool]:
    """Prevent runs from starting in the folder during the block. Yield False if a run is already active there."""
    try:
        handle = hold(run / LOCK)
    except OSError:  # the file system does not support locks
        handle = None
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)
