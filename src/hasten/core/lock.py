"""Lock files between processes. The system releases a lock when the last process that holds it dies, also by SIGKILL."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold(path: Path, *, wait: bool = False, inherited: bool = False) -> int | None:
    """Lock a file, and return its descriptor; None if another process holds it and `wait` is false.

    Args:
        path: The file. It is created if missing.
        wait: Wait for it.
        inherited: Whether processes that this one starts hold it too.

    Raises:
        OSError: The file cannot be created, or its file system does not support locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            return None
        raise
    os.set_inheritable(handle, inherited)
    return handle


def is_held(path: Path) -> bool:
    """Whether a process holds the lock, on this machine or on one that shares its disk."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
