"""What is made once on a machine, then reused by every process: generated data, and what was computed from data."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hasten.core.doing import doing
from hasten.core.errors import MachineError
from hasten.optimizations.parts.sample_caching import FOLDER_VARIABLE


def drawn_once(name: str, draw: Callable[[Path], None], *, words: str = "drawing images") -> Path:
    """Return a folder of generated content, in HASTEN_CACHE_DIR if it is set and in the temporary folder otherwise.

    The folder is generated under a temporary name and renamed when complete, so concurrent processes do not conflict.

    Args:
        name: Name of the folder. It must identify everything that determines the content.
        draw: Generates the content into the given folder.
        words: What is done, for the terminal.

    Raises:
        MachineError: The folder cannot be written.
    """
    configured = os.environ.get(FOLDER_VARIABLE)
    parent = Path(configured).expanduser() if configured else Path(tempfile.gettempdir()) / f"hasten-drawn-{os.getuid()}"
    folder = parent / name
    if folder.is_dir():
        return folder
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
        doing(f"{words}, once on this machine")
        try:
            draw(scratch / name)
            (scratch / name).rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process finished first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise MachineError(
            f"cannot write generated content to {parent} ({error.strerror}): set {FOLDER_VARIABLE} to a writable folder."
        ) from error
    return folder
