"""Whether a run is at work in a folder: it holds a lock there, which the system takes back however the run ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".running.0"
"""What rank 0 of a run holds."""


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
