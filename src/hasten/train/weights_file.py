"""Save weights atomically: after a crash at any moment, the file is either the complete old one or the complete new one.

A temporary file is written next to the target, flushed to disk and renamed, and the folder is flushed too. Optionally, a
background thread writes a copy of the weights while training continues.
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
    """Writes one version of the weights after another to the same file, at most one at a time.

    Args:
        path: The file, in the run's folder. It is always complete.
        settings: How it is written.
        count: Called with `checkpoints_in_background` for each file written in the background.

    Raises:
        MachineError: The folder cannot be created or written. Errors of background writes are raised by the next call.
    """

    def __init__(self, path: Path, settings: AroundSettings, count: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._settings, self._count = path, settings, count
        self._snapshot = StateSnapshot()
        self._thread = ThreadPoolExecutor(1, "hasten-checkpoint")
        self._pending: Future[None] | None = None
        remove_parts(path)

    def save(self, state: Mapping[str, Any]) -> None:
        """Save the current `state`. The caller may change it as soon as this returns.

        Waits for the previous write, if it is still in progress.
        """
        self.wait()
        if self._settings.checkpoint_background:
            self._pending = self._thread.submit(self._write, self._snapshot.take(state))
            self._count("checkpoints_in_background")
        else:
            self._write(on_cpu(state))

    def check(self) -> None:
        """Raise the error of a background write, if one failed."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the file is complete and on disk."""
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
            raise MachineError(f"Cannot write {self.path}: {error}. Free some space, or choose another folder.") from error
