"""Follow a run of Hasten's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

from hasten.data.cache.contract import Cache
from hasten.monitor.alerts.live import LiveAlerts
from hasten.monitor.begin import make_monitor
from hasten.monitor.metric import FLOP_UTILIZATION, FLOPS, GRADIENT_NORM, LEARNING_RATE, LOSS, SAMPLES, SKIPPED
from hasten.monitor.monitor import Monitor, Pace, Progress
from hasten.monitor.peak import peak_flops
from hasten.monitor.sampler import Host
from hasten.monitor.sink import SinkRequest
from hasten.monitor.window import Start
from hasten.train.clock import SampledClock
from hasten.train.guards.incidents import Incident
from hasten.train.loop import Loop
from hasten.train.observer import Observe, Observer

_SNAPSHOT_S = 0.001
"""A look at the checkpoint in progress that takes less is not marked."""
_PHASE = dict.fromkeys(("saver", "last checkpoint", "last write"), "checkpoint")


class LoopProgress:
    """Reads the progress of a loop. Phases are estimated from the updates that its clock times."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._peak = loop, peak_flops(loop.live.device)
        self._phases: dict[str, float] = {}
        self._timed, self._seconds, self._update = 0, dict[str, float](), loop.position.update

    def spent(self, phase: str, seconds: float) -> None:
        """Add time between updates."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def __call__(self) -> Progress:
        """Return the progress. Call it between updates."""
        loop = self._loop
        if isinstance(loop.clock, SampledClock):  # set by `follow_loop`
            self._add_updates(*loop.clock.so_far())
        rate = loop.live.optimizer.param_groups[0]["lr"]
        values: dict[str, Any] = {SKIPPED.name: loop.skipped, LEARNING_RATE.name: rate}
        if loop.losses:
            values[LOSS.name] = loop.losses[-1]
        if loop.gradient_norm is not None:
            values[GRADIENT_NORM.name] = loop.gradient_norm
        counts = {SAMPLES.name: float(loop.ranks.world * loop.position.samples)}
        if (flops := loop.live.job.flops_per_sample) is not None:
            counts[FLOPS.name] = flops * counts[SAMPLES.name]
            if self._peak is not None:  # the rate of a share of the peak is the utilization
                counts[FLOP_UTILIZATION.name] = counts[FLOPS.name] / (self._peak * loop.ranks.world)
        return Progress(step=loop.position.update, phases=dict(self._phases), counts=counts, values=values)

    def _add_updates(self, timed: int, seconds: dict[str, float]) -> None:
        """Add the updates since the last call, as if all were like those of them that were timed."""
        update = self._loop.position.update
        if timed == self._timed:
            return
        weight = max(update - self._update, 0) / (timed - self._timed)
        for phase, total in seconds.items():
            self.spent(phase, weight * (total - self._seconds.get(phase, 0.0)))
        self._timed, self._seconds, self._update = timed, seconds, update


class LoopObserver:
    """Passes on what a run tells."""

    def __init__(self, monitor: Monitor, progress: LoopProgress, *, leads: bool) -> None:
        self._monitor, self._progress, self._leads = monitor, progress, leads

    def after_update(self) -> None:
        """Count an update."""
        self._monitor.after_step()

    def spent(self, what: str, seconds: float) -> None:
        """Add the time to its phase, and mark the work."""
        phase = _PHASE.get(what, what)
        self._progress.spent(phase, seconds)
        if what != "saver" or seconds >= _SNAPSHOT_S:
            self._monitor.mark(phase, seconds=seconds)

    def incident(self, incident: Incident) -> None:
        """Mark an incident. The rules of alerts read its kind and its words."""
        if self._leads:  # it happens on all ranks at once
            self._monitor.mark(incident.kind, words=incident.text())


def _cache_counts(dataset: Any) -> dict[str, float]:
    """Return the hits and misses of the cache of `hasten.data` that a dataset reads; empty if there is none."""
    cache = getattr(dataset, "cache", None)
    return {"dataset_hits": cache.stats.hits, "dataset_misses": cache.stats.misses} if isinstance(cache, Cache) else {}


def batches_since(loop: Loop, first: int) -> list[list[int]]:
    """Return the sample indices, over all ranks, of the batches trained on since batch `first` of the run, up to now.

    Empty for an iterable dataset, whose samples have no indices.
    """
    if loop.live.order is None:
        return []
    found, update, epoch, number = list[list[int]](), loop.position.update, 0, 0
    while update > 0:
        batches = loop.live.batches(epoch)
        updates = -(-len(batches) // loop.live.batches_per_update)
        trained = batches if update >= updates else batches[: update * loop.live.batches_per_update]
        found += trained[max(first - number, 0) :]
        update, epoch, number = update - updates, epoch + 1, number + len(batches)
    return found


def follow_loop(
    out: Path,
    requests: Sequence[SinkRequest] = (),
    *,
    say: Callable[[str], None] = print,
    pace: Pace | None = None,
    alerts: LiveAlerts | None = None,
) -> Observe:
    """Return what `RunOptions.observe` takes."""

    @contextmanager
    def observe(loop: Loop) -> Iterator[Observer]:
        if alerts is not None:
            alerts.leave_to_guards()
        progress, live, ranks = LoopProgress(loop), loop.live, loop.ranks
        if not isinstance(loop.clock, SampledClock):  # ranks other than 0
            loop.clock = SampledClock(live.device)
        cuda = live.device.type == "cuda"
        host = Host(
            rank=ranks.rank,
            folder=out,
            device=lambda: (live.device.index or 0) if cuda else None,
            loader=lambda: loop.stream.iterator,
            counters=lambda: {**live.counters, **_cache_counts(live.dataset)},
            job=live.job,
            batches=lambda first: batches_since(loop, first),
        )
        at = ranks.agreed(time())  # all ranks give the run the same name
        start = Start(run="", rank=ranks.rank, world=ranks.world, at=at, step=loop.position.update)
        with make_monitor(
            start, progress, host, requests, say=say, pace=pace, alerts=alerts, samples=live.num_samples
        ) as monitor:
            try:
                yield LoopObserver(monitor, progress, leads=ranks.rank == 0)
            finally:
                if alerts is not None:
                    alerts.training_ended()

    return observe
