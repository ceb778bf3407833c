"""TensorBoard and Weights & Biases in a script: their classes, as soon as the script has loaded them.

Nothing is imported here that the script would not import. A finder on `sys.meta_path` lets Python find the few modules that
are named, and adds one thing to their loading: what is to be done after it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.script.patches import Patches


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """A class that takes metrics.

    Attributes:
        module: Where it is defined.
        name: Its name there.
        label: What it is called in a profile.
        reports: Methods that take something; a name that ends in `_` stands for all that begin so.
    """

    module: str
    name: str
    label: str
    reports: tuple[str, ...]

    def methods(self, owner: type) -> list[str]:
        """Those of its methods that take something."""
        beginnings = tuple(name for name in self.reports if name.endswith("_"))
        found = [name for name in vars(owner) if name in self.reports or name.startswith(beginnings)]
        return [name for name in found if callable(getattr(owner, name))]


TRACKERS = (
    Tracker(module="torch.utils.tensorboard.writer", name="SummaryWriter", label="tensorboard", reports=("add_", "flush")),
    Tracker(module="tensorboardX.writer", name="SummaryWriter", label="tensorboard", reports=("add_", "flush")),
    # `wandb.log` becomes the method of the run when one begins.
    Tracker(module="wandb.sdk.wandb_run", name="Run", label="wandb", reports=("log",)),
)
LABELS = frozenset(tracker.label for tracker in TRACKERS)

Act = Callable[[Tracker, Any], None]
"""Is given a tracker and its class."""


class Trackers:
    """Acts once on each tracker's class that the script loads, and at once on what it has loaded already.

    Args:
        act: What to do.
        on_failure: Called where that raises; the script goes on.
    """

    def __init__(self, act: Act, on_failure: Callable[[], None] = lambda: None) -> None:
        self._act, self._on_failure = act, on_failure
        self._waiting: dict[str, Tracker] = {}

    def begin(self) -> None:
        """Look at what is loaded, and wait for the rest."""
        self._waiting = {tracker.module: tracker for tracker in TRACKERS}
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None:
                self._loaded(module)
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Wait no more."""
        self._waiting = {}
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that the other finders give for a tracker's module; None for everything else."""
        if name not in self._waiting:
            return None
        # Those behind this one alone: another of these asks those before it, which would ask this one again, for ever.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Put our step behind this one loader's, on the instance; it is gone before the module's own code runs."""
        before = vars(loader).get("exec_module") if hasattr(loader, "__dict__") else None

        def exec_module(module: ModuleType) -> None:
            if before is None:
                del loader.exec_module
            else:
                loader.exec_module = before
            loader.exec_module(module)
            self._loaded(module)

        if hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            loader.exec_module = exec_module

    def _loaded(self, module: ModuleType) -> None:
        tracker = self._waiting.pop(module.__name__, None)
        owner = getattr(module, tracker.name, None) if tracker is not None else None
        if tracker is None or owner is None:
            return
        try:
            self._act(tracker, owner)
        except Exception:  # noqa: BLE001 - whatever of ours fails, the script goes on
            self._on_failure()


def silence_tracker(patches: Patches, tracker: Tracker, owner: Any) -> None:
    """Have a tracker take nothing."""
    for name in tracker.methods(owner):
        patches.put(owner, name, nothing)


def redirect(patches: Patches, folder: Path, tracker: Tracker, owner: Any) -> None:
    """Have TensorBoard write its event files to a folder of ours, one folder a writer."""
    if tracker.label != "tensorboard":
        return
    made = 0

    def elsewhere(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def redirected(writer: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal made
            made += 1
            kwargs = {name: value for name, value in kwargs.items() if name not in ("logdir", "log_dir")}
            original(writer, str(folder / f"events-{made}"), *args[1:], **kwargs)

        return redirected

    patches.put(owner, "__init__", elsewhere)


def nothing(original: Callable[..., Any]) -> Callable[..., None]:
    """A function that does nothing, for the place of another."""

    @functools.wraps(original)
    def silenced(*_args: Any, **_kwargs: Any) -> None:
        return None

    return silenced
