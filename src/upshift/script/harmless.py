"""What keeps a profiling run from leaving checkpoints behind, and how it ends: docs/attach.md says what is not caught."""

from __future__ import annotations

import builtins
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from upshift.script.patches import Patches


class Enough(SystemExit):
    """Ends a profiled script the way `sys.exit(0)` would: its `finally` blocks and its exit handlers run."""

    def __init__(self) -> None:
        super().__init__(0)


class Checkpoints:
    """Sends what `torch.save` writes to a path into a scratch folder, and lets `torch.load` find it there.

    Writing takes the time it takes, so that its cost is seen. One file a path: later ones replace it.

    Args:
        folder: The scratch folder.
        skip: Save nothing at all.
    """

    def __init__(self, folder: Path, *, skip: bool = False) -> None:
        self.folder, self.skip = folder, skip
        self._moved: dict[str, Path] = {}

    def save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around `torch.save`."""

        @functools.wraps(original)
        def save_seam(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if self.skip:
                return None
            if isinstance(f, str | os.PathLike):
                name = os.path.abspath(f)  # noqa: PTH100 - the key is the text that `load` will make of it too
                f = self._moved.setdefault(name, self.folder / f"saved-{len(self._moved)}")
            return original(obj, f, *args, **kwargs)

        return save_seam

    def load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around `torch.load`."""

        @functools.wraps(original)
        def load_seam(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                f = self._moved.get(os.path.abspath(f), f)  # noqa: PTH100 - as above
            return original(f, *args, **kwargs)

        return load_seam


def make_harmless(patches: Patches, folder: Path, *, silent: bool) -> None:
    """Keep checkpoints and the records of trackers out of the user's folders; silence prints and logs if asked."""
    checkpoints = Checkpoints(folder, skip=silent)
    patches.put(torch, "save", checkpoints.save)
    patches.put(torch, "load", checkpoints.load)
    os.environ.update({
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
    })  # fmt: skip
    if silent:
        patches.put(builtins, "print", _nothing)
        patches.put(logging.Logger, "handle", _nothing)


def _nothing(original: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(original)
    def silenced(*_args: Any, **_kwargs: Any) -> None:
        return None

    return silenced
