"""Notice that a script trains in processes that it starts itself: these are not watched, and leave a mark where they train.

A process that is forked inherits a hook; one that is started anew by multiprocessing is let in as the script itself was.
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
"""Steps of an optimizer that are training."""


def follow_children(folder: Path, patches: Patches) -> None:
    """Have the processes that this one starts from now on leave a mark in a folder where they train."""
    os.register_at_fork(after_in_child=functools.partial(_mark_steps, folder))
    patches.put(util, "spawnv_passfds", functools.partial(_letting_in, folder))


def install(config: Mapping[str, Any]) -> None:
    """Leave a mark where this process trains. Called by the import hook once torch is loaded."""
    _mark_steps(Path(config["folder"]))


def _mark_steps(folder: Path) -> None:
    steps = itertools.count(1)

    def stepped(*_: Any) -> None:
        if next(steps) == STEPS:
            with suppress(OSError):  # the launcher was killed and its folder is gone: there is nobody to tell
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
