"""Act on the classes of TensorBoard and Weights & Biases as soon as a script loads them.

Nothing is imported here that the script would not import. A finder on `sys.meta_path` delegates to Python's own finders and
adds a step after loading for the few modules concerned.
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
    """A class that receives metrics.

    Attributes:
        module: The module that defines it.
        name: Its name in the module.
        label: Its name in a profile.
        reports: Its methods that receive metrics. A name that ends in `_` is a prefix.
    """

    module: str
    name: str
    label: str
    reports: tuple[str, ...]

    def methods(self, owner: type) -> list[str]:
        """Return the names of the class's methods that receive metrics."""
        prefixes = tuple(name for name in self.reports if name.endswith("_"))
        names = [name for name in vars(owner) if name in self.reports or name.startswith(prefixes)]
        return [name for name in names if callable(getattr(owner, name))]


TRACKERS = (
    Tracker(module="torch.utils.tensorboard.writer", name="SummaryWriter", label="tensorboard", reports=("add_", "flush")),
    Tracker(module="tensorboardX.writer", name="SummaryWriter", label="tensorboard", reports=("add_", "flush")),
    # `wandb.log` is replaced by the method of the run when a run begins.
    Tracker(module="wandb.sdk.wandb_run", name="Run", label="wandb", reports=("log",)),
)
LABELS = frozenset(tracker.label for tracker in TRACKERS)

Act = Callable[[Tracker, Any], None]
"""Called with a tracker and its class."""


class Trackers:
    """Calls a function once for each tracker class: now for classes that are already loaded, else when they are loaded.

    Args:
        act: The function to call.
        on_failure: Called if `act` raises an error. The script continues.
    """

    def __init__(self, act: Act, on_failure: Callable[[], None] = lambda: None) -> None:
        self._act, self._on_failure = act, on_failure
        self._waiting: dict[str, Tracker] = {}

    def begin(self) -> None:
        """Act on the loaded classes, and wait for the others."""
        self._waiting = {tracker.module: tracker for tracker in TRACKERS}
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None:
                self._loaded(module)
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop waiting."""
        self._waiting = {}
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that the other finders give for a tracker's module; None for any other module."""
        if name not in self._waiting:
            return None
        # Ask only the finders after this one: two finders of this kind that ask all others would call each other forever.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Run our step after this loader instance. The change is undone before the module's own code runs."""
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
        except Exception:  # noqa: BLE001 - the script continues after any failure
            self._on_failure()


def silence_tracker(patches: Patches, tracker: Tracker, owner: Any) -> None:
    """Make a tracker ignore all metrics."""
    for name in tracker.methods(owner):
        patches.put(owner, name, nothing)


def redirect(patches: Patches, folder: Path, tracker: Tracker, owner: Any) -> None:
    """Make TensorBoard write its event files to subfolders of `folder`, one for each writer."""
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
    """Return a function that does nothing and has the signature of another."""

    @functools.wraps(original)
    def silenced(*_args: Any, **_kwargs: Any) -> None:
        return None

    return silenced
