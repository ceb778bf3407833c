"""Whether a run is at work in a folder: it holds a lock there, which the system takes back however the run ends."""

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
"""What rank 0 of a run holds."""
_PATIENCE_S = 30.0
"""How long to wait for a folder that another process holds."""


def hold_folder(run: Path, rank: int, say: Callable[[str], None]) -> int:
    """A handle that holds the run's folder; a run that was killed holds it until its last checkpoint is written.

    Raises:
        DataError: Another run holds it.
    """
    run.mkdir(parents=True, exist_ok=True)
    handle = os.open(run / _BY_RANK.format(rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = monotonic() + _PATIENCE_S
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if monotonic() > until:
                os.close(handle)
                raise DataError(
                    f"another run is at work in {run}: wait for it, or choose another folder (--out)."
                ) from error
            if not told:
                say(f"waiting for another run in {run}, or for the last checkpoint of one that was killed")
                told = True
            sleep(0.02)
        else:
            return handle


def is_running(run: Path) -> bool:
    """Whether a run is at work in the folder, on this machine or on one that shares its disk."""
    try:
        handle = os.open(run / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def kept_from_running(run: Path) -> Iterator[bool]:
    """Keep runs out of the folder for a while; gives whether that could be had: not while one is at work there."""
    handle = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)
