"""The drawn pictures that a job learns where it was given none: made once, found again by every process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hasten.core.errors import MachineError
from hasten.optimizations.parts.sample_caching import FOLDER_VARIABLE


def drawn_once(name: str, draw: Callable[[Path], None]) -> Path:
    """A folder of drawn pictures; it lies in HASTEN_CACHE_DIR where that is set.

    It is published by one renaming when it is whole, so processes that draw at the same time do not meet.

    Args:
        name: Of the folder; says all that decides what is drawn.
        draw: Draws into a folder.

    Raises:
        MachineError: It cannot be written.
    """
    kept = os.environ.get(FOLDER_VARIABLE)
    place = Path(kept).expanduser() if kept else Path(tempfile.gettempdir()) / f"hasten-drawn-{os.getuid()}"
    folder = place / name
    if folder.is_dir():
        return folder
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place))
        try:
            draw(mine / name)
            (mine / name).rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
        finally:
            shutil.rmtree(mine, ignore_errors=True)
    except OSError as error:
        raise MachineError(
            f"pictures cannot be drawn into {place} ({error.strerror}): set {FOLDER_VARIABLE} to a folder that takes files."
        ) from error
    return folder
