"""Write files: whole ones that no reader or crash meets half of, and parts of open ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_at(file: int, data: bytes, start: int) -> None:
    """Write all of `data` to an open file from its byte `start` on.

    Raises:
        OSError: The disk is full or fails; a part may be written then.
    """
    rest = memoryview(data)
    while rest:
        done = os.pwrite(file, rest, start)
        rest, start = rest[done:], start + done


def flush_folder(folder: Path) -> None:
    """Flush the names of a folder to disk: a file that was renamed into it is found there after a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write to a temporary file beside `path`, flush it to disk, and rename it into place.

    Raises:
        OSError: The folder cannot be made or written; nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
