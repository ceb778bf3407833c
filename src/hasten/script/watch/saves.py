"""Time checkpoints: `torch.save`, and what a script does with the saved file: flushing, renaming, copying, removing."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from hasten.script.patches import Patches
from hasten.script.source_lines import users_line
from hasten.script.watch.record import CHECKPOINT, LOGGING, Recorder

FOLLOWING = (
    *((os, name) for name in ("rename", "replace", "remove", "unlink")),
    *((shutil, name) for name in ("move", "copy", "copy2", "copyfile", "rmtree")),
)
"""Functions whose time counts as checkpointing if they follow a save, or if their first argument is a saved file."""
NAMES = ("torch.save", "os.fsync after torch.save", *(f"{owner.__name__}.{name}" for owner, name in FOLLOWING))
"""Names of all places of checkpoints."""


class Saves:
    """The seams of checkpoints.

    Args:
        recorder: Receives the phases.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._saved: set[str] = set()

    def install(self, patches: Patches) -> None:
        """Install the seams."""
        patches.put(torch, "save", self._save)
        patches.put(os, "fsync", self._fsync)
        for owner, name in FOLLOWING:
            patches.put(owner, name, functools.partial(self._following, f"{owner.__name__}.{name}"))

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save_seam(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.free():
                return original(obj, f, *args, **kwargs)
            self._saved.add(_path(f))
            return self._timed("torch.save", CHECKPOINT, original, (obj, f, *args), kwargs)

        return save_seam

    def _following(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def following_seam(*args: Any, **kwargs: Any) -> Any:
            if not (
                self._recorder.free() and (self._recorder.last == CHECKPOINT or (args and _path(args[0]) in self._saved))
            ):
                return original(*args, **kwargs)
            self._saved.update(map(_path, args[1:2]))
            return self._timed(what, CHECKPOINT, original, args, kwargs)

        return following_seam

    def _fsync(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fsync_seam(fd: Any) -> Any:
            if not self._recorder.free():
                return original(fd)
            saved = self._recorder.last == CHECKPOINT or _path(fd) in self._saved
            what, phase = ("os.fsync after torch.save", CHECKPOINT) if saved else ("os.fsync", LOGGING)
            return self._timed(what, phase, original, (fd,), {})

        return fsync_seam

    def _timed(self, what: str, phase: int, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._recorder.enter(phase, joins=phase == CHECKPOINT)
        try:
            return original(*args, **kwargs)
        finally:
            seconds = self._recorder.leave()
            if (line := users_line()) is not None:
                self._recorder.note(what, *line, seconds)


def _path(file: Any) -> str:
    """Return the absolute path of a path, an open file or a file descriptor; "" if it has none."""
    with suppress(OSError, TypeError, ValueError):
        number = file if isinstance(file, int) else None if isinstance(file, str | os.PathLike) else file.fileno()
        return os.path.abspath(file) if number is None else os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH100, PTH115
    return ""
