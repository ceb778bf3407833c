"""Detect that a script trains in child processes. Children are not watched; they create a marker file when they train.

A forked process inherits a hook. A process that multiprocessing starts with the `spawn` method gets the same import hook as
the script itself.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from hasten.script.entry.launch import ELSEWHERE, way_in
from hasten.script.patches import Patches

STEPS = 2
"""Number of optimizer steps that count as training."""


def follow_children(folder: Path, patches: Patches) -> None:
    """Make all processes that this one starts from now on create a marker file in a folder when they train."""
    os.register_at_fork(after_in_child=functools.partial(_mark_steps, folder))
    patches.put(util, "spawnv_passfds", functools.partial(_letting_in, folder))


def install(config: Mapping[str, Any]) -> None:
    """Create a marker file when this process trains. Called by the import hook once torch is loaded."""
    _mark_steps(Path(config["folder"]))


def _mark_steps(folder: Path) -> None:
    steps = itertools.count(1)

    def stepped(*_: Any) -> None:
        if next(steps) == STEPS:
            with suppress(OSError):  # the launcher was killed and its folder is gone: no one reads the marker
                (folder / f"{ELSEWHERE}-{os.getpid()}").touch()

    register_optimizer_step_post_hook(stepped)


def _letting_in(folder: Path, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def spawning_seam(*args: Any, **kwargs: Any) -> Any:
        ours = way_in(folder, os.environ.get("PYTHONPATH"))
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            return original(*args, **kwargs)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    return spawning_seam
