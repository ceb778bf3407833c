"""Train a run from its current position to its end: updates, validation, reports, checkpoints, rollbacks, stop signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

from hasten.core.job import Job
from hasten.train.checkpoints.saver import Saver, Turn
from hasten.train.guards.guarded_loop import GuardedLoop, RollBack
from hasten.train.guards.rollback import Rollback
from hasten.train.guards.run_guards import Guards
from hasten.train.observer import Observer
from hasten.train.periodic import PeriodicWork
from hasten.train.process_group import progress_for_launcher
from hasten.train.signals import StopRequest


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        updates: Completed updates, including those of earlier parts of the run.
        samples: Samples seen in these updates.
        part_samples: Samples seen in this part of the run.
        seconds: Seconds of this part until everything was written, including validation.
        held_out: The last held-out metrics.
        stopped_by: The signal that stopped it early; None if none did.
        went_on_from: The update it was resumed from; None for a new run.
    """

    updates: int
    samples: int
    seconds: float
    held_out: dict[str, float]
    part_samples: int = 0
    stopped_by: signal.Signals | None = None
    went_on_from: int | None = None


class _Stopped(Exception):  # noqa: N818  not an error: a stop was requested
    """A signal asked the run to stop, and it is between two updates."""


class Trainer:
    """Drives a run. All ranks must use it together.

    Args:
        loop: The loop of the run.
        periodic: Writes reports and weights, and validates.
        saver: Saves checkpoints; None if there are none.
        guards: Watches the run.
        way_back: Rolls the run back to a checkpoint.
        planned: Updates of the whole run.
        observer: Told of each update and of the work between updates.
        seen: Held-out results of earlier parts of the run, in order. The best may be among them.
    """

    def __init__(
        self,
        loop: GuardedLoop,
        periodic: PeriodicWork,
        saver: Saver | None,
        guards: Guards,
        way_back: Rollback,
        *,
        planned: int,
        observer: Observer,
        seen: Sequence[Mapping[str, float]] = (),
    ) -> None:
        self._observer = observer
        self._loop, self._periodic, self._saver = loop, periodic, saver
        self._guards, self._way_back, self._planned = guards, way_back, planned
        live = loop.live
        self._per_epoch = planned if live.order is None else -(-len(live.order(0)) // live.job.accumulation)
        self._best = Best(live.job)
        for held_out in seen:
            self._best.is_better(held_out)
        self._tell_launcher = progress_for_launcher()
        self._asked = False
        self._stop = StopRequest()

    def run(self) -> Result:
        """Train to the end, or until a signal asks to stop, and return the result."""
        started, held_out = perf_counter(), dict[str, float]()
        loop = self._loop
        before = loop.position.samples
        self._tell_launcher(loop.position.update)
        with self._stop:
            try:
                if loop.position.update >= self._planned:
                    self._periodic.save()  # it was killed after its last checkpoint, possibly before saving its weights
                while loop.position.update < self._planned and not self._asked:
                    held_out = self._epoch() or held_out
            except _Stopped:
                with self._during("last checkpoint"):
                    self._periodic.report()
                    self._periodic.save()
                    if self._saver is not None:
                        self._saver.save(wait=True)
            with self._during("last write"):
                self._periodic.wait()
            seconds = perf_counter() - started
            counts = torch.tensor([loop.position.samples, loop.position.samples - before], device=loop.live.device)
            samples, part_samples = map(int, loop.ranks.sum(counts))
            received = loop.ranks.union([self._stop.signal.name] if self._stop.signal else [])  # sorted: SIGINT first
            return Result(
                updates=loop.position.update,
                samples=samples,
                part_samples=part_samples,
                seconds=seconds,
                held_out=held_out,
                stopped_by=signal.Signals[received[0]] if received else None,
            )

    def _epoch(self) -> dict[str, float]:
        """Train to the end of the epoch, validate and save. Return the held-out metrics; empty after a rollback."""
        loop = self._loop
        due = self._per_epoch - loop.position.update % self._per_epoch
        try:
            loop.run(min(due, self._planned - loop.position.update), on_update=self._after_update)
        except RollBack as wrong:
            with self._during("rollback"):
                self._way_back.go(wrong, self._saver)
            self._periodic.went_back()
            return {}
        with self._during("validation"):
            held_out = self._periodic.validate()
        with self._during("checkpoint"):
            self._periodic.report(held_out)
            self._periodic.save()
            if self._saver is not None:
                self._saver.save(best=self._best.is_better(held_out))
        return held_out

    def _after_update(self) -> None:
        self._guards.after_update()
        self._observer.after_update()
        self._periodic.after_update()
        update = self._loop.position.update
        self._tell_launcher(update)
        turn = self._agree()
        if update % self._per_epoch == 0 or update >= self._planned:
            return  # at the end of an epoch, the run is saved with its held-out results
        if self._saver is not None:
            began = perf_counter()
            self._saver.after_update(turn)
            self._observer.spent("saver", perf_counter() - began)
        if self._asked:
            raise _Stopped

    @contextmanager
    def _during(self, what: str) -> Iterator[None]:
        """Let the guards and the observer watch work other than an update."""
        began = perf_counter()
        try:
            with self._guards.during(what):
                yield
        finally:
            self._observer.spent(what, perf_counter() - began)

    def _agree(self) -> Turn | None:
        """Agree over all ranks whether to stop, and return what to do about checkpoints; None for a single rank."""
        ranks, asked = self._loop.ranks, self._stop.signal is not None
        if ranks.world == 1:
            self._asked = asked
            return None
        mine = Turn(written=True, due=False) if self._saver is None else self._saver.turn()
        flags = [float(asked), float(not mine.written), float(ranks.rank == 0 and mine.due)]
        sums = ranks.sum(torch.tensor(flags, device=self._loop.live.device)).tolist()
        self._asked, any_writes, due = (number > 0 for number in sums)
        return Turn(written=not any_writes, due=due and not any_writes)


class Best:
    """Tracks the best held-out result so far, by the metric of the job's quality.

    Args:
        job: The job. Without a quality, no result is best.
    """

    def __init__(self, job: Job) -> None:
        self._quality = job.quality
        self._value: float | None = None

    def is_better(self, held_out: Mapping[str, float]) -> bool:
        """Return whether a result is better than all earlier ones, and remember it."""
        if self._quality is None or self._quality.metric not in held_out:
            return False
        value = held_out[self._quality.metric] * (1.0 if self._quality.direction == "min" else -1.0)
        if self._value is not None and not value < self._value:
            return False
        self._value = value
        return True
