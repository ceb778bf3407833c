"""Save weights so that a crash at any moment leaves a whole file: the old one or the new one.

A file is written beside its name, flushed to the disk and renamed, and the folder is flushed too. A copy of the weights may
be written by another thread while training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from hasten.core.errors import HastenError, MachineError
from hasten.core.files import remove_parts, replaced
from hasten.core.live import AroundSettings
from hasten.train.snapshot import StateSnapshot, on_cpu


class WeightsFile:
    """Writes one checkpoint after another under one name; at most one is on its way at any time.

    Args:
        path: The file, in the run's folder. It is always whole.
        settings: How it is written.
        count: Told `checkpoints_in_background`, where that is so.

    Raises:
        MachineError: A folder cannot be made or written; from any method, at the latest from the one after it happened.
    """

    def __init__(self, path: Path, settings: AroundSettings, count: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._settings, self._count = path, settings, count
        self._snapshot = StateSnapshot()
        self._thread = ThreadPoolExecutor(1, "hasten-checkpoint")
        self._pending: Future[None] | None = None
        remove_parts(path)

    def save(self, state: Mapping[str, Any]) -> None:
        """Save `state` as it is now; it may be changed as soon as this returns.

        Waits for the checkpoint before, where that is still on its way.
        """
        self.wait()
        if self._settings.checkpoint_background:
            self._pending = self._thread.submit(self._write, self._snapshot.take(state))
            self._count("checkpoints_in_background")
        else:
            self._write(on_cpu(state))

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the durable file is whole."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except HastenError:
            raise
        except Exception as error:
            raise HastenError(f"Writing {self.path} raised {type(error).__name__}: {error}.") from error

    def _write(self, state: Mapping[str, Any]) -> None:
        try:
            with replaced(self.path) as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            raise MachineError(f"Cannot write {self.path}: {error}. Make room there, or choose another folder.") from error
