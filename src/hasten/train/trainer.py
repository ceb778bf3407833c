"""Train from where a run stands to its end: updates, validation, reports, checkpoints, rollbacks, stop signals."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from hasten.core.job import Job
from hasten.train.checkpoints.saver import Saver, Turn
from hasten.train.guards.guarded_loop import GuardedLoop, RollBack
from hasten.train.guards.rollback import Rollback
from hasten.train.guards.run_guards import Guards
from hasten.train.periodic import PeriodicWork
from hasten.train.process_group import progress_for_launcher
from hasten.train.signals import StopRequest


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to.

    Attributes:
        updates: Done, those of earlier parts of the run included.
        samples: Seen in them.
        seconds: Of this part, until all was written, validation included.
        held_out: The last held-out metrics.
        stopped_by: The signal that ended it before its end; None where none did.
        went_on_from: The update it went on from; None where it began anew.
    """

    updates: int
    samples: int
    seconds: float
    held_out: dict[str, float]
    stopped_by: signal.Signals | None = None
    went_on_from: int | None = None


class _Stopped(Exception):  # noqa: N818  no error: somebody asked for it
    """A signal asked the run to end, and it stands between two updates."""


class Trainer:
    """Drives a run. All ranks together.

    Args:
        loop: The run.
        periodic: Its reports, weights and validation.
        saver: Its checkpoints; None where it has none.
        guards: What looks after it.
        way_back: What takes it back to a checkpoint.
        planned: Updates of the whole run.
        seen: Held-out results of an earlier part of the run, in their order: the best may be among them.
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
        seen: Sequence[Mapping[str, float]] = (),
    ) -> None:
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
        """Train to the end, or until a signal asks for it; what it came to."""
        started, found = perf_counter(), dict[str, float]()
        loop = self._loop
        self._tell_launcher(loop.position.update)
        with self._stop:
            try:
                if loop.position.update >= self._planned:
                    self._periodic.save()  # it was killed after its last checkpoint, and maybe before its weights were there
                while loop.position.update < self._planned and not self._asked:
                    found = self._epoch() or found
            except _Stopped:
                with self._guards.during("last checkpoint"):
                    self._periodic.save()
                    if self._saver is not None:
                        self._saver.save(wait=True)
            with self._guards.during("last write"):
                self._periodic.wait()
            seconds = perf_counter() - started
            samples = int(loop.ranks.sum(torch.tensor(loop.position.samples, device=loop.live.device)))
            heard = loop.ranks.union([self._stop.signal.name] if self._stop.signal else [])  # by name SIGINT comes first
            return Result(
                updates=loop.position.update,
                samples=samples,
                seconds=seconds,
                held_out=found,
                stopped_by=signal.Signals[heard[0]] if heard else None,
            )

    def _epoch(self) -> dict[str, float]:
        """Train to the end of the epoch, validate and save; the held-out metrics. Empty where the run went back instead."""
        loop = self._loop
        due = self._per_epoch - loop.position.update % self._per_epoch
        try:
            loop.run(min(due, self._planned - loop.position.update), on_update=self._after_update)
        except RollBack as wrong:
            with self._guards.during("rollback"):
                self._way_back.go(wrong, self._saver)
            self._periodic.went_back()
            return {}
        with self._guards.during("validation"):
            found = self._periodic.validate()
        with self._guards.during("checkpoint"):
            self._periodic.report(found)
            self._periodic.save()
            if self._saver is not None:
                self._saver.save(best=self._best.is_better(found))
        return found

    def _after_update(self) -> None:
        self._guards.after_update()
        self._periodic.after_update()
        update = self._loop.position.update
        self._tell_launcher(update)
        turn = self._agree()
        if update % self._per_epoch == 0 or update >= self._planned:
            return  # at the end of an epoch it is saved with its held-out results
        if self._saver is not None:
            self._saver.after_update(turn)
        if self._asked:
            raise _Stopped

    def _agree(self) -> Turn | None:
        """Learn whether any rank was asked to end, and what is to be done about checkpoints: the same on all ranks."""
        ranks, asked = self._loop.ranks, self._stop.signal is not None
        if ranks.world == 1:
            self._asked = asked
            return None
        mine = Turn(written=True, due=False) if self._saver is None else self._saver.turn()
        told = [float(asked), float(not mine.written), float(ranks.rank == 0 and mine.due)]
        both = ranks.sum(torch.tensor(told, device=self._loop.live.device)).tolist()
        self._asked, any_writes, due = (number > 0 for number in both)
        return Turn(written=not any_writes, due=due and not any_writes)


class Best:
    """Whether held-out results are the best until now, by the metric that the job's quality names.

    Args:
        job: The job; without a quality nothing is best.
    """

    def __init__(self, job: Job) -> None:
        self._quality = job.quality
        self._value: float | None = None

    def is_better(self, found: Mapping[str, float]) -> bool:
        """Compare, and remember."""
        if self._quality is None or self._quality.metric not in found:
            return False
        value = found[self._quality.metric] * (1.0 if self._quality.direction == "min" else -1.0)
        if self._value is not None and not value < self._value:
            return False
        self._value = value
        return True
