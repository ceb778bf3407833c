"""The training loop for unattended runs, which handles failed updates.

If memory runs out, the update is repeated with its batches in smaller parts, at the same optimizer batch. If a loss or a
gradient is NaN or infinite, the run stops, skips the update, or rolls back to a checkpoint. Every incident is recorded with
the samples of its update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hasten.core.errors import JobError, LossError, MachineError
from hasten.core.live import LiveJob
from hasten.core.seeding import KeptGenerators
from hasten.core.sync import shard
from hasten.train.guards.incidents import INCIDENTS, Incident, Incidents, shown_samples
from hasten.train.guards.non_finite import NonFinitePolicy, SpikeWatch, all_finite
from hasten.train.guards.oom import ChangedBuffers, PieceLimit, Window, free_memory, is_out_of_memory
from hasten.train.loop import Loop, MicroBatch, Position
from hasten.train.ranks import Ranks

_LEARNS = 2
"""Number of updates after which it is known which buffers change."""


class _Where(NamedTuple):
    """An update, with its range of batches in the epoch."""

    update: int
    epoch: int
    begin: int
    end: int


class RollBack(Exception):  # noqa: N818  not an error while there is a checkpoint to roll back to
    """An update failed, and the run must roll back to its newest checkpoint.

    Args:
        incident: What happened. Its action is not set yet.
    """

    def __init__(self, incident: Incident) -> None:
        super().__init__(incident.words)
        self.incident = incident


class GuardedLoop(Loop):
    """A loop that handles failed updates. It cannot rewind.

    Args:
        live: The live job.
        incidents: Records incidents.
        non_finite: How to handle NaN and infinite losses and gradients.
        ranks: The process group; None detects it.
    """

    def __init__(
        self, live: LiveJob, incidents: Incidents, *, non_finite: NonFinitePolicy | None = None, ranks: Ranks | None = None
    ) -> None:
        super().__init__(live, ranks=ranks, rewinds=False)
        self._incidents, self._non_finite = incidents, non_finite or NonFinitePolicy()
        self._limit, self._spikes = PieceLimit(), SpikeWatch()
        self._buffers = ChangedBuffers(live.model)
        self._stepping = False
        self._taken_by = Window(iter(()))
        self._left_out = self._done = 0
        self._generators = KeptGenerators(live.device)
        self._began: tuple[Position, int, int] | None = None
        self._unread: list[_Where] = []

    def read_losses(self) -> None:
        """Copy the pending losses to the host and check them.

        Raises:
            LossError: A loss is NaN or infinite. The samples of its update are in the incidents.
        """
        before = len(self.losses)
        unread, self._unread = self._unread, []
        try:
            super().read_losses()
        except LossError as error:
            where = unread[len(self.losses) - before]
            self._note("not finite", where, f"the loss is {error.value}", "the run stops")
            raise
        for where, loss in zip(unread, self.losses[before:], strict=True):
            if words := self._spikes.look(where.update, loss):
                self._note("spike", where, words, "no action")

    def went_back(self) -> None:
        """Discard gradients and the history of losses after a rollback."""
        self.live.optimizer.zero_grad(set_to_none=True)
        self._unread.clear()
        self._spikes.forget()
        self._left_out = 0

    def _update(self, source: Iterator[MicroBatch | None]) -> None:
        window = Window(source)
        self._buffers.keep()
        if self.live.applied:
            self._generators.keep()
        self._began = (replace(self.position), self._taken, len(self._pending))
        before = self.position.samples
        while words := self._tried(window):
            self._make_smaller(words)
            self.position.samples = before
            window.again()
        self._began = None
        if self._done < _LEARNS:
            self._done += 1
            self._buffers.learn()
            if self._done == _LEARNS and self.live.applied:
                self._generators.learn()

    def back_to_start_of_update(self) -> bool:
        """Restore the state from the beginning of the update that failed.

        Returns:
            Whether that is possible: the failure came within an update, before its optimizer step.
        """
        if self._began is None or self._stepping:
            return False
        self.position, self._taken, pending = self._began
        del self._pending[pending:]
        self.live.optimizer.zero_grad(set_to_none=True)
        self._buffers.put_back()
        self._generators.put_back()
        return True

    def _tried(self, window: Window) -> str:
        """Try the update. Return the error message if memory ran out, otherwise an empty string."""
        self._stepping = False
        self._taken_by = window
        try:
            super()._update(window)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if self._stepping:
                raise MachineError(
                    f"Memory ran out in the optimizer step of update {self.position.update} ({_short(error)}), which "
                    f"cannot be repeated. The checkpoints are intact. Try `hasten tune --objective memory`, and continue "
                    f"with --resume."
                ) from error
            if self.live.sync is not None:
                raise MachineError(
                    f"Memory ran out in update {self.position.update} on rank {self.ranks.rank} ({_short(error)}) while "
                    f"ranks exchange gradients. Compute fewer samples at once (`hasten batch`), and continue with --resume."
                ) from error
            return _short(error)
        except JobError as error:
            if self._limit.elements is None:
                raise
            raise MachineError(f"Memory ran out in update {self.position.update}, and a retry failed: {error}") from error
        return ""

    def _make_smaller(self, words: str) -> None:
        """Free the memory of the failed update, and set a lower limit on the size of its parts."""
        self.live.optimizer.zero_grad(set_to_none=self.live.zero_grad_to_none)
        self._buffers.put_back()
        free_memory()
        if not self._limit.lower():
            raise MachineError(
                f"Memory ran out in update {self.position.update} with a single sample ({words}). Check the size of that "
                f"sample, or try `hasten tune --objective memory` (activation checkpointing, lower precision)."
            )
        action = "the update is repeated in smaller parts, at the same optimizer batch"
        if any(isinstance(module, _BatchNorm) for module in self.live.model.modules()):
            action += "; BatchNorm computes its statistics over the parts"
        self._note("out of memory", self._where(), f"memory ran out ({words})", action)

    def _parts(self, batch: object, size: int) -> int:
        return self._limit.parts(batch, size, self.live.micro_parts)

    def _step(self) -> None:
        self._stepping = True
        where = self._where()
        if self._non_finite.policy == "stop" or not (words := self._bad()):
            self._unread.append(where)
            self._left_out = 0
            super()._step()
            return
        self._pending.pop()
        incident = self._incident("not finite", where, words, "the update is skipped")
        if self._non_finite.policy == "rollback":
            raise RollBack(incident)
        self._left_out += 1
        if self.live.scaler is not None:
            super()._step()  # the scaler skips the step and lowers its scale
        else:
            self.skipped += 1
        if self._left_out > self._non_finite.most:
            raise LossError(
                f"{self._left_out} updates in a row were skipped, the last because {words}"
                f"{shown_samples(incident.samples)}. The checkpoints before them are intact: lower the learning rate, or "
                f"check the samples in {INCIDENTS}.",
                update=where.update,
            )
        self._incidents.note(incident)

    def _bad(self) -> str:
        """Return why this update must not be applied, the same on all ranks; empty if it may be."""
        loss = self._pending[-1]
        if not bool(torch.isfinite(loss)):
            return f"the loss is {float(loss)}"
        if self.live.scaler is not None:  # it checks the gradients itself, and scaled gradients may be infinite
            return ""
        gradients = [shard(p.grad) for p in self._parameters if p.grad is not None]
        bad = torch.tensor(0.0 if all_finite(gradients) else 1.0, device=self.live.device)
        if float(self.ranks.sum(bad)) > 0:
            return f"a gradient is NaN or infinite, at a loss of {float(loss):.4g}"
        return ""

    def _where(self) -> _Where:
        taken = self._taken
        return _Where(self.position.update, self.position.epoch, taken - self._taken_by.num_batches, taken)

    def _note(self, kind: str, where: _Where, words: str, action: str) -> None:
        self._incidents.note(self._incident(kind, where, words, action))

    def _incident(self, kind: str, where: _Where, words: str, action: str) -> Incident:
        batches = self.live.batches(where.epoch)[where.begin : where.end]
        samples = tuple(index for batch in batches for index in batch)
        return Incident(kind=kind, update=where.update, epoch=where.epoch, words=words, action=action, samples=samples)


def _short(error: BaseException) -> str:
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 160 else message[:157] + "..."
