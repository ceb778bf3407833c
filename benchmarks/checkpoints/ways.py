"""Ways to save a run's state: each starts a save, reports when it has ended, and names its files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from hasten.train.checkpoints.saver import Pace, Saver
from hasten.train.loop import Loop


class Way(Protocol):
    """A way to save."""

    def begin(self, path: Path) -> Path:
        """Start a save into an existing folder; training waits for this call. Return the folder actually written to."""
        ...

    def has_ended(self) -> bool:
        """Return whether the save has ended, as reported by the library. Called after each update."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class _State:
    """A synchronous way: the save has ended when `begin` returns."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def state(self) -> dict[str, Any]:
        """Return the usual state of model and optimizer."""
        return {"model": self.loop.live.model.state_dict(), "optimizer": self.loop.live.optimizer.state_dict()}

    def begin(self, path: Path) -> Path:
        """Save the state."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        """Return True, since saving is synchronous."""
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class TorchSave(_State):
    """`torch.save`."""

    def begin(self, path: Path) -> Path:
        """Save the state."""
        torch.save(self.state(), path / "state.pt")
        return path


class DistributedSave(_State):
    """`torch.distributed.checkpoint.save`."""

    def begin(self, path: Path) -> Path:
        """Save the state."""
        save(self.state(), checkpoint_id=path)
        return path


class DistributedAsync(_State):
    """`torch.distributed.checkpoint.async_save`."""

    def __init__(self, loop: Loop, kind: AsyncCheckpointerType, *, keeps_buffers: bool = False) -> None:
        super().__init__(loop)
        self._kind = kind
        # With shared memory, no copy need be sent to the process. Page-locked memory is for GPUs.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options) if keeps_buffers else None
        self._future: Future[Any] | None = None

    def begin(self, path: Path) -> Path:
        """Start the save."""
        found = async_save(self.state(), checkpoint_id=path, async_checkpointer_type=self._kind, async_stager=self._stager)
        self._future = found if isinstance(found, Future) else found.upload_completion
        return path

    def has_ended(self) -> bool:
        """Return whether the upload is complete, and raise its error if it failed."""
        if self._future is None or not self._future.done():
            return False
        self._future.result()
        return True

    def close(self) -> None:
        """Close the stager."""
        if self._stager is not None:
            self._stager.close()


class LightningAsync(_State):
    """Lightning's `AsyncCheckpointIO`."""

    def __init__(self, loop: Loop) -> None:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO  # noqa: PLC0415  an extra

        super().__init__(loop)
        ended = self._ended = threading.Event()

        class Told(TorchCheckpointIO):  # type: ignore[misc]  # Lightning has no types here
            """Lightning's own plugin, with a notification on completion."""

            def save_checkpoint(self, *arguments: Any, **named: Any) -> None:
                """Save the checkpoint."""
                super().save_checkpoint(*arguments, **named)
                ended.set()

        self._plugin = AsyncCheckpointIO(Told())

    def begin(self, path: Path) -> Path:
        """Start the save."""
        self._ended.clear()
        self._plugin.save_checkpoint(self.state(), path / "state.ckpt")
        return path

    def has_ended(self) -> bool:
        """Return whether the file has been written."""
        return self._ended.is_set()

    def close(self) -> None:
        """Stop its thread."""
        self._plugin.teardown()


class Ours:
    """The saver of `hasten run`, which also saves random states, the position in the data, and checksums."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._saver: Saver | None = None
        self._run = Path()

    def begin(self, path: Path) -> Path:
        """Start the save."""
        if self._saver is None:  # one saver serves all checkpoints of a run's folder
            self._run = path.parent.parent / "run"
            self._saver = Saver(self._loop, self._run, Pace(every=10**9, keep=1))
        self._saver.save()
        return self._run

    def has_ended(self) -> bool:
        """Return whether the checkpoint is durable and committed."""
        return self._saver is not None and self._saver.after_update() is not None

    def close(self) -> None:
        """Stop its process."""
        if self._saver is not None:
            self._saver.close()


OURS = "hasten"
WAYS: dict[str, Callable[[Loop], Way]] = {
    OURS: Ours,
    "torch.save": TorchSave,
    "DCP save": DistributedSave,
    "DCP async_save, thread": lambda loop: DistributedAsync(loop, AsyncCheckpointerType.THREAD),
    "DCP async_save, thread, kept buffers": lambda loop: DistributedAsync(
        loop, AsyncCheckpointerType.THREAD, keeps_buffers=True
    ),
    "DCP async_save, process": lambda loop: DistributedAsync(loop, AsyncCheckpointerType.PROCESS),
    "DCP async_save, process, kept buffers": lambda loop: DistributedAsync(
        loop, AsyncCheckpointerType.PROCESS, keeps_buffers=True
    ),
    "Lightning AsyncCheckpointIO": LightningAsync,
}
