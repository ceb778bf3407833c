"""The training loop, correct before fast.

- Gradients are normalised by the total weight of the accumulation window over all ranks.
- The last partial window of an epoch is flushed with its true size.
- The schedule counts optimizer updates. Updates skipped by the gradient scaler do not count.
- The order is scale, backward, unscale once, clip, step, update.
- Losses stay on the device until they are read, every `read_every` updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hasten.core.errors import HastenError, LossError
from hasten.core.job import Loss, Number
from hasten.core.layouts import dense_parts
from hasten.core.live import LiveJob
from hasten.core.seeding import mix, seed_everything
from hasten.core.sync import shard
from hasten.train.clock import Clock, NoClock
from hasten.train.initial_state import InitialState
from hasten.train.microbatch import split_batch
from hasten.train.ranks import PlaceholderBatch, Ranks, current_ranks
from hasten.train.stream import Stream

MicroBatch = tuple[Any, int]


@dataclass
class Position:
    """The position of a run: updates completed, samples seen on this rank, and the current epoch."""

    update: int = 0
    samples: int = 0
    epoch: int = 0


class Loop:
    """Trains a live job, a number of updates at a time.

    Args:
        live: The live job.
        clock: Measures the phases; None measures nothing.
        ranks: The process group; None detects it.
        rewinds: Keep a copy of model and optimizer in memory, for `rewind`.

    Attributes:
        live: The live job.
        position: The position of the run.
        losses: The losses read so far, one per update, in order.
        skipped: Number of updates that the gradient scaler skipped.
        steps_optimizer: Whether updates run the optimizer step; if not, nothing is trained.
        keeps_gradients: Whether gradients, normalised over the window and all ranks, are kept after an update.
    """

    def __init__(
        self, live: LiveJob, *, clock: Clock | None = None, ranks: Ranks | None = None, rewinds: bool = True
    ) -> None:
        self.live = live
        self.clock: Clock = clock or NoClock()
        self.ranks = ranks or current_ranks()
        self.stream = Stream(live, self.ranks)
        self.position = Position()
        self.losses: list[float] = []
        self.skipped = 0
        self.gradient_norm: torch.Tensor | None = None
        self.steps_optimizer = True
        self.keeps_gradients = False
        self._pending: list[torch.Tensor] = []
        self._batches: Iterator[MicroBatch | None] | None = None
        self._taken = self._first_update = 0
        self._unit: Any = 1.0
        self._start = InitialState(live) if rewinds else None
        self._stand_in = PlaceholderBatch(live, self.ranks)
        self._parameters = [p for group in live.optimizer.param_groups for p in group["params"]]
        # Sums over ranks need the same dtype on every rank, including ranks without samples.
        self._sum_dtype = torch.float64 if any(p.dtype == torch.float64 for p in self._parameters) else torch.float32
        self._begin()

    def run(
        self, num_updates: int, *, batches: Sequence[MicroBatch] | None = None, on_update: Callable[[], None] | None = None
    ) -> None:
        """Run `num_updates` optimizer updates and read the pending losses.

        Args:
            num_updates: Number of updates.
            batches: Micro-batches to repeat instead of the job's data. Accumulation windows are then never cut short.
            on_update: Called after each update, on the host.

        Raises:
            LossError: The loss is not a scalar, has no gradient, or is NaN or infinite.
        """
        source = self._real_batches() if batches is None else _circle(batches)
        self.live.model.train()
        for _ in range(num_updates):
            self._update(source)
            if on_update is not None:
                on_update()
        self.read_losses()

    def rewind(self) -> None:
        """Reset model, optimizer, schedule, randomness and data to the start of the run.

        Raises:
            HastenError: The loop was created with `rewinds=False`.
        """
        if self._start is None:
            raise HastenError("This loop cannot rewind, because it did not keep its initial state: use rewinds=True.")
        self._start.restore(self.live)
        self.position = Position()
        self.losses.clear()
        self._pending.clear()
        self.skipped = 0
        self.stream.close()
        self._batches = None
        self._taken = self._first_update = 0
        self._begin()

    def upcoming(self, num_updates: int) -> list[list[int]]:
        """Return the sample indices of the next batches to compute; empty for an iterable dataset."""
        if self.live.order is None:
            return []
        batches: list[list[int]] = []
        wanted = num_updates * self.live.batches_per_update
        epoch, done = self.position.epoch, self._taken
        while len(batches) < wanted:
            batches += self.live.batches(epoch)[done:]
            done, epoch = 0, epoch + 1
        return batches[:wanted]

    @property
    def taken(self) -> int:
        """Number of micro-batches taken from the current epoch."""
        return self._taken

    @property
    def unit(self) -> float:
        """The divisor of objectives if gradients are summed before the window's weight is known."""
        return float(self._unit)

    def go_to(self, position: Position, *, taken: int, unit: float, skipped: int) -> None:
        """Continue at the position of another run, whose weights, state and random numbers are already restored.

        Args:
            position: The position of that run.
            taken: Number of micro-batches it had taken from the current epoch.
            unit: The value of its `unit`.
            skipped: Number of updates that its gradient scaler had skipped.
        """
        self.stream.close()
        self._batches = None
        self.position, self._taken, self.skipped = position, taken, skipped
        self._first_update = position.update
        # A tensor, as `_finish` sets it: division by a tensor rounds differently from division by a number.
        learnt = position.update > 0 and self.live.sync is not None
        self._unit = torch.tensor(unit, dtype=self._sum_dtype, device=self.live.device) if learnt else unit
        self.losses.clear()
        self._pending.clear()

    def read_losses(self) -> None:
        """Copy the pending losses to the host and check them.

        Raises:
            LossError: A loss is NaN or infinite.
        """
        if not self._pending:
            return
        values = torch.stack(self._pending).tolist()
        self._pending.clear()
        for value in values:
            if not math.isfinite(value):
                update = self._first_update + len(self.losses)
                raise LossError(_not_finite(value, update), update=update, value=value)
            self.losses.append(value)

    def close(self) -> None:
        """Stop the loader workers."""
        self.stream.close()
        self._batches = None

    def _begin(self) -> None:
        seed_everything(mix(self.live.seed, 0x100 + self.ranks.rank))
        # The divisor of objectives if gradients are summed before the window's weight is known. Any number works if all
        # ranks use the same. A number near the weight of one pass keeps gradients in the range of 16-bit numbers.
        self._unit = max(self.live.job.batch_size / self.ranks.world, 1.0)

    def _real_batches(self) -> Iterator[MicroBatch | None]:
        if self._batches is None:
            self._batches = self._endless()
        return self._batches

    def _endless(self) -> Iterator[MicroBatch | None]:
        """Yield the micro-batches of all epochs; None marks the end of an epoch."""
        while True:
            for item in self.stream.epoch(self.position.epoch, self._taken):
                self._taken += 1
                yield item
            yield None
            self.position.epoch += 1
            self._taken = 0

    def _update(self, source: Iterator[MicroBatch | None]) -> None:
        live, clock, wanted = self.live, self.clock, self.live.batches_per_update
        clock.start()
        sums: list[Loss] = []
        first: Any = None
        mean: torch.Tensor | None = None
        averaged = False
        for number in range(wanted):
            item = next(source)
            if item is None and sums:
                break
            if item is None:
                item = next(source)
                if item is None:
                    raise LossError("An epoch had no batches. Check the training data.", update=self.position.update)
            batch, size = item
            clock.lap("data")
            self.position.samples += size
            if size == 0:
                averaged = self._stand_by(last=number == wanted - 1)
                sums.append(Loss(torch.zeros((), device=live.device), 0))
                continue
            batch = live.to_device(batch)
            clock.lap("transfer")
            if live.merge != 1:
                self._count_merged(size)
            pieces = self._pieces(batch, size)
            for place, (piece, piece_size) in enumerate(pieces, number * len(pieces) + 1):
                last = place == wanted * len(pieces)
                loss = self._checked(live.compute_loss(piece) if live.sync is None else live.sync.loss(piece, last=last))
                mean = loss if isinstance(loss, torch.Tensor) else None
                part = Loss(loss * piece_size, piece_size) if isinstance(loss, torch.Tensor) else loss
                if first is None:
                    first = _nonzero(part.weight) if live.sync is None else self._unit
                alone = wanted == 1 and len(pieces) == 1 and live.sync is None
                objective = mean if mean is not None and alone else part.total / first
                clock.lap("forward")
                averaged = self._backward(objective, last=last)
                sums.append(Loss(part.total.detach(), part.weight))
        self._finish(sums, first, mean, averaged=averaged)
        clock.lap("optimizer")
        self.position.update += 1
        if self.position.update % live.read_every == 0:
            self.read_losses()
        clock.lap("logging")

    def _count_merged(self, size: int) -> None:
        """Count a batch, and whether it is larger than this rank's share of a micro-batch."""
        live = self.live
        live.count("batches_computed")
        live.count("batches_merged", size > -(-live.job.batch_size // self.ranks.world))

    def _pieces(self, batch: Any, size: int) -> list[MicroBatch]:
        """Return the batch, split into parts if the plan requires it."""
        live, parts = self.live, self._parts(batch, size)
        if parts == 1:
            return [(batch, size)]
        pieces = split_batch(batch, size, parts)
        live.count("batches_cut")
        live.count("batch_parts", len(pieces))
        return pieces

    def _parts(self, _batch: Any, _size: int) -> int:
        """Return the number of parts in which a batch is computed."""
        return self.live.micro_parts

    def _backward(self, objective: torch.Tensor, *, last: bool) -> bool:
        """Run a backward pass, and return whether the gradients are now the mean over the ranks."""
        live, clock = self.live, self.clock
        objective = live.scaler.scale(objective) if live.scaler else objective
        if live.sync is None or not (last or live.sync.each_pass):
            objective.backward()
            clock.lap("backward")
            return False
        live.sync.backward(objective, computed=lambda: clock.lap("backward"))
        clock.lap("sync")
        return True

    def _stand_by(self, *, last: bool) -> bool:
        """Join the passes of the ranks that have samples, with weight 0, if gradients are averaged during the passes."""
        sync = self.live.sync
        if sync is None or not (last or sync.each_pass):
            return False
        with self._stand_in.changing_nothing():
            loss = self._checked(sync.loss(self._stand_in.batch(), last=last))
            total = loss.total if isinstance(loss, Loss) else loss
            return self._backward(total * 0.0, last=last)

    def _finish(self, sums: list[Loss], first: Any, mean: torch.Tensor | None, *, averaged: bool) -> None:
        """Normalise the window's gradients, step, and store the window's loss.

        Args:
            sums: The losses of the window's parts.
            first: The divisor of the objectives; None if this rank had no samples.
            mean: The last loss, if it was a scalar mean.
            averaged: Whether the gradients are already the mean over the ranks.
        """
        live, dtype = self.live, self._sum_dtype
        if len(sums) == 1 and self.ranks.world == 1 and live.sync is None:
            self._pending.append((sums[0].total / sums[0].weight if mean is None else mean.detach()).to(dtype))
        else:
            total = torch.stack([part.total.to(dtype) for part in sums]).sum()
            weight = torch.stack([torch.as_tensor(part.weight, dtype=dtype, device=total.device) for part in sums]).sum()
            both = self.ranks.sum(torch.stack([total, weight]))
            self._pending.append(both[0] / both[1])
            if averaged:
                first = self._unit * self.ranks.world
            gradients = [shard(p.grad) for p in self._parameters if p.grad is not None]
            if gradients and first is not None:
                torch._foreach_mul_(gradients, first / both[1])
            # Gradients are still scaled: if one rank has an infinite gradient, the scalers of all ranks must skip the step.
            if not averaged:
                self.ranks.sum_gradients(self._parameters)
            if live.sync is not None:
                self._unit = _nonzero(both[1]) / (live.batches_per_update * self.ranks.world)
        if self.ranks.world > 1:
            self.clock.lap("sync")
        if self.steps_optimizer:
            self._step()
        if not self.keeps_gradients:
            live.optimizer.zero_grad(set_to_none=live.zero_grad_to_none)

    def _step(self) -> None:
        live = self.live
        if live.job.clip_norm is not None:
            if live.scaler:
                live.scaler.unscale_(live.optimizer)
            self.gradient_norm = clip_gradients(self._parameters, live.job.clip_norm)
        if live.scaler is None:
            live.optimizer.step()
        else:
            before = live.scaler.get_scale()
            live.scaler.step(live.optimizer)
            live.scaler.update()
            if live.scaler.get_scale() < before:
                self.skipped += 1
                return
        if live.scheduler is not None:
            live.scheduler.step()
        with torch.no_grad():
            live.job.after_update(live.model)

    def _checked(self, loss: object) -> torch.Tensor | Loss:
        name = type(self.live.job).__name__
        total = loss.total if isinstance(loss, Loss) else loss
        if not isinstance(total, torch.Tensor):
            kind = type(total).__name__
            hint = "return a scalar tensor or hasten.Loss"
            raise LossError(f"{name}.loss returned {kind}; {hint}.", update=self.position.update)
        if total.numel() != 1:
            shape = tuple(total.shape)
            hint = "take the mean over the batch, or return hasten.Loss(total, weight)"
            raise LossError(f"{name}.loss returned a tensor of shape {shape}; {hint}.", update=self.position.update)
        if not total.requires_grad:
            hint = "check for .detach(), .item(), torch.no_grad() or frozen parameters"
            raise LossError(f"{name}.loss returned a loss without a gradient; {hint}.", update=self.position.update)
        if not isinstance(loss, Loss):
            return total.reshape(())
        weight: Any = loss.weight
        if not isinstance(weight, torch.Tensor | float | int):
            kind, hint = type(weight).__name__, "use a number or a scalar tensor"
            raise LossError(f"{name}.loss returned a weight of type {kind}; {hint}.", update=self.position.update)
        weight = weight.detach().reshape(()) if isinstance(weight, torch.Tensor) else weight
        return Loss(total.reshape(()), weight)


def clip_gradients(parameters: Sequence[nn.Parameter], most: float) -> torch.Tensor:
    """Clip the norm of all gradients, and return it. Accepts sparse gradients too, unlike torch's own function."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if all(gradient.layout is torch.strided for gradient in gradients):
        return nn.utils.clip_grad_norm_(parameters, most)
    norm = nn.utils.get_total_norm([dense_parts(gradient)[-1] for gradient in gradients])
    nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def _nonzero(weight: Number) -> Number:
    """Return a weight to divide by: 1 if a micro-batch, or a rank's part of it, has no valid items."""
    if isinstance(weight, torch.Tensor):
        return torch.where(weight > 0, weight, torch.ones_like(weight))
    return weight if weight > 0 else 1


def _circle(batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
    while True:
        yield from batches


def _not_finite(value: float, update: int) -> str:
    if update == 0:
        return (
            f"The first loss is {value}. Check the data for NaN, the loss for divisions by zero and logarithms of zero, "
            f"and the initialisation of the model."
        )
    return f"The loss became {value} at update {update}. Lower the learning rate, clip gradients, or check that batch."
