"""Isolate a measured run from the user's files and trackers (see docs/guides/process.md)."""

from __future__ import annotations

import builtins
import errno
import functools
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hasten.script.entry.overlay import Overlay
from hasten.script.patches import Patches
from hasten.script.watch.trackers import Act, Trackers, nothing, redirect, silence_tracker


class Checkpoints:
    """Redirects files that `torch.save` writes to a scratch folder, where `torch.load` finds them.

    Files are really written, so that the cost of writing is measured. A later file replaces an earlier one of the same path.

    Args:
        overlay: Locations of this run's files; None if the run has its own view of the file system.
        skip: Skip files that were saved before.
    """

    def __init__(self, overlay: Overlay | None, *, skip: bool = False) -> None:
        self._overlay, self.skip = overlay, skip
        self._saved: set[str] = set()

    def save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.save`."""

        @functools.wraps(original)
        def save_seam(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(f, str | os.PathLike):
                return None if self.skip else original(obj, f, *args, **kwargs)
            if self.skip and self._is_saved(f):
                return None
            self._saved.add(os.path.abspath(f))  # noqa: PTH100 - compared with paths as the script gives them
            return original(obj, f if self._overlay is None else self._overlay.claim(f), *args, **kwargs)

        return save_seam

    def load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.load`, which may map a file into memory without opening it in Python."""

        @functools.wraps(original)
        def load_seam(f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(f if self._overlay is None else self._overlay.find(f), *args, **kwargs)

        return load_seam

    def _is_saved(self, f: Any) -> bool:
        if self._overlay is not None:
            return self._overlay.find(f) is not f
        return os.path.abspath(f) in self._saved and os.path.exists(f)  # noqa: PTH100, PTH110 - as above


def moving(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `os.rename` and `os.replace` to move files between covered folders, which are separate file systems here."""

    @functools.wraps(original)
    def moving_seam(src: Any, dst: Any, **kwargs: Any) -> Any:
        try:
            return original(src, dst, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs:
                raise
            if os.path.isdir(src) and os.path.isdir(dst):  # noqa: PTH112 - paths as the script gives them
                os.rmdir(dst)  # noqa: PTH106 - as above
        shutil.move(src, dst)
        return None

    return moving_seam


def isolate(
    patches: Patches, folder: Path, *, silent: bool, private: bool = False, on_failure: Callable[[], None] = lambda: None
) -> None:
    """Isolate a run from the user's files. If asked, also silence prints, logs and trackers.

    Args:
        patches: Installs and removes the wrappers.
        folder: Folder for redirected files.
        silent: Suppress prints, logs and trackers.
        private: The run has its own view of the file system (`apart`), so files need no redirection.
        on_failure: Called if an internal error occurs later.
    """
    overlay = None if private else Overlay(folder)
    if overlay is None:
        for name in ("rename", "replace"):
            patches.put(os, name, moving)
    else:
        overlay.install(patches)
    checkpoints = Checkpoints(overlay, skip=silent)
    patches.put(torch, "save", checkpoints.save)
    patches.put(torch, "load", checkpoints.load)
    os.environ.update({
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
    })  # fmt: skip
    _act_on_trackers(patches, functools.partial(redirect, patches, folder), on_failure)
    if silent:
        silence(patches, on_failure)


def silence(patches: Patches, on_failure: Callable[[], None] = lambda: None) -> None:
    """Suppress prints, logs and trackers."""
    patches.put(builtins, "print", nothing)
    patches.put(logging.Logger, "handle", nothing)
    _act_on_trackers(patches, functools.partial(silence_tracker, patches), on_failure)


def _act_on_trackers(patches: Patches, act: Act, on_failure: Callable[[], None]) -> None:
    trackers = Trackers(act, on_failure)
    trackers.begin()
    patches.also(trackers.end)
