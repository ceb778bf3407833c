"""The ways to save a run's state: each begins a save, says when it has ended, and tells its files."""

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
        """Begin a save into a folder that exists; training waits for this call. The folder where it really goes."""
        ...

    def has_ended(self) -> bool:
        """Whether the save has ended, by its own account. Called after each update."""
        ...

    def close(self) -> None:
        """Let everything go."""
        ...


class _State:
    """A way that is over when `begin` returns."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def state(self) -> dict[str, Any]:
        """Model and optimizer, as everybody saves them."""
        return {"model": self.loop.live.model.state_dict(), "optimizer": self.loop.live.optimizer.state_dict()}

    def begin(self, path: Path) -> Path:
        """Save."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        """It has."""
        return True

    def close(self) -> None:
        """There is nothing to let go."""


class TorchSave(_State):
    """`torch.save`."""

    def begin(self, path: Path) -> Path:
        """Save."""
        torch.save(self.state(), path / "state.pt")
        return path


class DistributedSave(_State):
    """`torch.distributed.checkpoint.save`."""

    def begin(self, path: Path) -> Path:
        """Save."""
        save(self.state(), checkpoint_id=path)
        return path


class DistributedAsync(_State):
    """`torch.distributed.checkpoint.async_save`."""

    def __init__(self, loop: Loop, kind: AsyncCheckpointerType, *, keeps_buffers: bool = False) -> None:
        super().__init__(loop)
        self._kind = kind
        # Shared memory, so that the process need not be sent a copy; page-locked memory is for GPUs.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options) if keeps_buffers else None
        self._future: Future[Any] | None = None

    def begin(self, path: Path) -> Path:
        """Begin."""
        found = async_save(self.state(), checkpoint_id=path, async_checkpointer_type=self._kind, async_stager=self._stager)
        self._future = found if isinstance(found, Future) else found.upload_completion
        return path

    def has_ended(self) -> bool:
        """Whether the upload is complete; raises what went wrong in it."""
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
            """Lightning's own, and a word when it is done."""

            def save_checkpoint(self, *arguments: Any, **named: Any) -> None:
                """Save."""
                super().save_checkpoint(*arguments, **named)
                ended.set()

        self._plugin = AsyncCheckpointIO(Told())

    def begin(self, path: Path) -> Path:
        """Begin."""
        self._ended.clear()
        self._plugin.save_checkpoint(self.state(), path / "state.ckpt")
        return path

    def has_ended(self) -> bool:
        """Whether it was written."""
        return self._ended.is_set()

    def close(self) -> None:
        """End its thread."""
        self._plugin.teardown()


class Ours:
    """`hasten run`'s own, which also keeps random numbers, the place in the data, and checksums."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._saver: Saver | None = None
        self._run = Path()

    def begin(self, path: Path) -> Path:
        """Begin."""
        if self._saver is None:  # its folder is the run's, whichever checkpoint
            self._run = path.parent.parent / "run"
            self._saver = Saver(self._loop, self._run, Pace(every=10**9, keep=1))
        self._saver.save()
        return self._run

    def has_ended(self) -> bool:
        """Whether it is durable and committed."""
        return self._saver is not None and self._saver.after_update() is not None

    def close(self) -> None:
        """End its process."""
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
