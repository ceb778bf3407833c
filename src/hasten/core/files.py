"""Write files atomically, so that neither a reader nor a crash ever sees a partial file, and write parts of open files."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import IO

_NUMBERS = itertools.count()


def write_at(file: int, data: bytes, start: int) -> None:
    """Write all of `data` to an open file at byte offset `start`.

    Raises:
        OSError: The disk is full or fails. A part of the data may have been written.
    """
    rest = memoryview(data)
    while rest:
        done = os.pwrite(file, rest, start)
        rest, start = rest[done:], start + done


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a file renamed into it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replaced(path: Path, *, buffering: int = -1) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path`. At the end of the block, flush it to disk and rename it to `path`.

    Args:
        path: The file to replace. Its folder is created if missing.
        buffering: As in `open`.

    Raises:
        OSError: The folder cannot be created or written. No file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{_part_prefix(path)}{os.getpid()}-{next(_NUMBERS)}.part")
    try:
        with part.open("xb", buffering=buffering) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        flush_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: str | bytes) -> None:
    """Replace the file at `path` atomically by one with this content. See `replaced`.

    Raises:
        OSError: The folder cannot be created or written. No file is left behind.
    """
    with replaced(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


def remove_parts(path: Path) -> None:
    """Remove temporary files of `path` left behind by killed processes of this host."""
    for part in path.parent.glob(f"{escape(_part_prefix(path))}*.part"):
        process = part.name.removeprefix(_part_prefix(path)).partition("-")[0]
        if process.isdigit() and not _is_alive(int(process)):
            part.unlink(missing_ok=True)


def _part_prefix(path: Path) -> str:
    return f".{path.name}.{platform.node()}-"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True
