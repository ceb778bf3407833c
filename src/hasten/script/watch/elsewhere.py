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
from time import perf_counter
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import _DatasetKind, get_worker_info

from hasten.script.entry.launch import ELSEWHERE, READY, way_in
from hasten.script.patches import Patches

STEPS = 2
"""Number of optimizer steps that count as training."""


def follow_children(folder: Path, patches: Patches) -> None:
    """Make all processes that this one starts from now on create a marker file in a folder when they train.

    Loader workers also write when they are ready to make their first batch, in seconds of `perf_counter`.
    """
    os.register_at_fork(after_in_child=functools.partial(_mark_steps, folder))
    patches.put(util, "spawnv_passfds", functools.partial(_letting_in, folder))
    patches.put(_DatasetKind, "create_fetcher", functools.partial(_ready, folder))


def install(config: Mapping[str, Any]) -> None:
    """Create a marker file when this process trains. Called by the import hook once torch is loaded."""
    folder = Path(config["folder"])
    _mark_steps(folder)
    Patches().put(_DatasetKind, "create_fetcher", functools.partial(_ready, folder))


def _mark_steps(folder: Path) -> None:
    steps = itertools.count(1)

    def stepped(*_: Any) -> None:
        if next(steps) == STEPS:
            with suppress(OSError):  # the launcher was killed and its folder is gone: no one reads the marker
                (folder / f"{ELSEWHERE}-{os.getpid()}").touch()

    register_optimizer_step_post_hook(stepped)


def _ready(folder: Path, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that a worker calls after its initialization, just before its first batch."""

    @functools.wraps(original)
    def fetcher_seam(*args: Any, **kwargs: Any) -> Any:
        fetcher = original(*args, **kwargs)
        if get_worker_info() is not None:
            with suppress(OSError):  # as above
                (folder / f"{READY}-{os.getpid()}").write_text(repr(perf_counter()), encoding="ascii")
        return fetcher

    return fetcher_seam


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
