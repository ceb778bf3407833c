"""The training loop of a run that nobody watches: an update that fails is looked at before it can do harm.

Memory that runs out: the update is done again with its batches in smaller parts, at the same optimizer batch. A loss or a
gradient that is no number: the run stops, leaves the update out, or goes back to a checkpoint. Whatever happens is kept with
the samples it happened with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hasten.core.errors import JobError, LossError, MachineError
from hasten.core.live import LiveJob
from hasten.core.sync import shard
from hasten.train.guards.incidents import Incident, Incidents, shown_samples
from hasten.train.guards.non_finite import NonFinitePolicy, SpikeWatch, all_finite
from hasten.train.guards.oom import ChangedBuffers, PieceLimit, Window, free_memory, is_out_of_memory
from hasten.train.loop import Loop, MicroBatch
from hasten.train.ranks import Ranks

_LEARNS = 2
"""Updates after which it is known which buffers change."""


class _Where(NamedTuple):
    """An update, and the batches of its epoch that it took."""

    update: int
    epoch: int
    begin: int
    end: int


class RollBack(Exception):  # noqa: N818  no error as long as there is a checkpoint to go back to
    """An update went wrong, and the run is to go back to its newest checkpoint.

    Args:
        incident: What happened; its action is still to be told.
    """

    def __init__(self, incident: Incident) -> None:
        super().__init__(incident.words)
        self.incident = incident


class GuardedLoop(Loop):
    """A loop that looks after its updates. It keeps no start to go back to.

    Args:
        live: The job.
        incidents: Told what went wrong.
        non_finite: What is done about losses and gradients that are no numbers.
        ranks: The process group; found by itself when None.
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
        self._unread: list[_Where] = []

    def read_losses(self) -> None:
        """Bring the pending losses to the host, and look at them.

        Raises:
            LossError: One of them is NaN or infinite; the samples of its update are in the incidents.
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
                self._note("spike", where, words, "nothing was done")

    def went_back(self) -> None:
        """Forget what the losses were: the run stands somewhere else."""
        self.live.optimizer.zero_grad(set_to_none=True)
        self._unread.clear()
        self._spikes.forget()
        self._left_out = 0

    def _update(self, source: Iterator[MicroBatch | None]) -> None:
        window = Window(source)
        self._buffers.keep()
        before = self.position.samples
        while words := self._tried(window):
            self._make_smaller(words)
            self.position.samples = before
            window.again()
        if self._done < _LEARNS:
            self._done += 1
            self._buffers.learn()

    def _tried(self, window: Window) -> str:
        """Do the update; what ran out of memory, in words, where it did."""
        self._stepping = False
        self._taken_by = window
        try:
            super()._update(window)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if self._stepping:
                raise MachineError(
                    f"Memory ran out in the optimizer's step of update {self.position.update} ({_short(error)}), which "
                    f"cannot be done again. The checkpoints are whole. Try `hasten tune --objective memory`, and go on "
                    f"with --resume."
                ) from error
            if self.live.sync is not None:
                raise MachineError(
                    f"Memory ran out in update {self.position.update} on rank {self.ranks.rank} ({_short(error)}) while "
                    f"ranks exchange gradients. Compute fewer samples at once (`hasten batch`), and go on with --resume."
                ) from error
            return _short(error)
        except JobError as error:
            if self._limit.elements is None:
                raise
            raise MachineError(f"Memory ran out in update {self.position.update}, and: {error}") from error
        return ""

    def _make_smaller(self, words: str) -> None:
        """Free what the failed update held, and let its batches be cut smaller."""
        self.live.optimizer.zero_grad(set_to_none=self.live.zero_grad_to_none)
        self._buffers.put_back()
        free_memory()
        if not self._limit.lower():
            raise MachineError(
                f"Memory ran out in update {self.position.update} with a single sample ({words}). Look at the size of that "
                f"sample, or try `hasten tune --objective memory` (activation checkpointing, lower precision)."
            )
        action = "it is done again in smaller parts, at the same optimizer batch"
        if any(isinstance(module, _BatchNorm) for module in self.live.model.modules()):
            action += "; BatchNorm takes its statistics over the parts"
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
        incident = self._incident("not finite", where, words, "left out")
        if self._non_finite.policy == "rollback":
            raise RollBack(incident)
        self._left_out += 1
        if self.live.scaler is not None:
            super()._step()  # it skips the step, and lowers its scale
        else:
            self.skipped += 1
        if self._left_out > self._non_finite.most:
            raise LossError(
                f"{self._left_out} updates in a row were left out, the last because {words}"
                f"{shown_samples(incident.samples)}. The checkpoints before them are whole: lower the learning rate, or "
                f"look at the samples in the incidents.",
                update=where.update,
            )
        self._incidents.note(incident)

    def _bad(self) -> str:
        """Why this update must not be done, the same on all ranks; empty where nothing speaks against it."""
        loss = self._pending[-1]
        if not bool(torch.isfinite(loss)):
            return f"the loss is {float(loss)}"
        if self.live.scaler is not None:  # it looks at the gradients itself, and scaled ones may well be infinite
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
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 160 else words[:157] + "..."
