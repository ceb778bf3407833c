"""What keeps a measured run off the user's files and trackers, and how it ends: see docs/attach.md."""

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
    """Sends what `torch.save` writes to a path into a scratch folder, and lets `torch.load` find it there.

    Writing takes the time it takes, so that its cost is seen. One file a path: later ones replace it.

    Args:
        overlay: Where files of this run stand; None where the run has files of its own, and writes where it wants.
        skip: Save nothing again that was saved once.
    """

    def __init__(self, overlay: Overlay | None, *, skip: bool = False) -> None:
        self._overlay, self.skip = overlay, skip
        self._saved: set[str] = set()

    def save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around `torch.save`."""

        @functools.wraps(original)
        def save_seam(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(f, str | os.PathLike):
                return None if self.skip else original(obj, f, *args, **kwargs)
            if self.skip and self._is_saved(f):
                return None
            self._saved.add(os.path.abspath(f))  # noqa: PTH100 - compared with names as the script gives them
            return original(obj, f if self._overlay is None else self._overlay.claim(f), *args, **kwargs)

        return save_seam

    def load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around `torch.load`, which may map a file into memory without opening it in Python."""

        @functools.wraps(original)
        def load_seam(f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(f if self._overlay is None else self._overlay.find(f), *args, **kwargs)

        return load_seam

    def _is_saved(self, f: Any) -> bool:
        if self._overlay is not None:
            return self._overlay.find(f) is not f
        return os.path.abspath(f) in self._saved and os.path.exists(f)  # noqa: PTH100, PTH110 - as above


def moving(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around `os.rename` and `os.replace`: between two covered folders, which may be one file system without us."""

    @functools.wraps(original)
    def moving_seam(src: Any, dst: Any, **kwargs: Any) -> Any:
        try:
            return original(src, dst, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs:
                raise
            if os.path.isdir(src) and os.path.isdir(dst):  # noqa: PTH112 - names as the script gives them
                os.rmdir(dst)  # noqa: PTH106 - as above
        shutil.move(src, dst)
        return None

    return moving_seam


def isolate(
    patches: Patches, folder: Path, *, silent: bool, private: bool = False, on_failure: Callable[[], None] = lambda: None
) -> None:
    """Keep a run off the user's files; silence prints, logs and trackers if asked.

    Args:
        patches: Takes it off again.
        folder: Where everything goes.
        silent: Print, log and report nothing.
        private: The run has files of its own (`apart`): no need to keep it off the user's.
        on_failure: Called where something of ours fails later on.
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
    """Print, log and report nothing."""
    patches.put(builtins, "print", nothing)
    patches.put(logging.Logger, "handle", nothing)
    _act_on_trackers(patches, functools.partial(silence_tracker, patches), on_failure)


def _act_on_trackers(patches: Patches, act: Act, on_failure: Callable[[], None]) -> None:
    trackers = Trackers(act, on_failure)
    trackers.begin()
    patches.also(trackers.end)
