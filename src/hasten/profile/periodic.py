"""Measure the work around the updates of an epoch: reports, the checkpoint and the validation pass."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from hasten.core.live import LiveJob
from hasten.train.loop import Loop
from hasten.train.periodic import MOST_REPORTS_FRAC, PeriodicWork

VALIDATION_BATCHES = 4
"""Number of held-out batches to measure."""
REPORTS = 20
"""Number of reports to measure."""
SAVES = 3
"""Maximum number of checkpoints to measure."""
MAX_SAVES_S = 3.0
"""Seconds after which no further checkpoint is measured."""


@dataclass(kw_only=True)
class Around:
    """Seconds per epoch of the work around the updates, and related facts for the techniques that change it.

    Attributes:
        validation_s: One pass over the held-out data.
        validation_batches: Number of its batches.
        checkpoint_s: One checkpoint, until it is durable.
        checkpoint_bytes: Its size.
        report_s: One metric report.
        report_every_s: Seconds between two reports.
        epoch_updates: Updates of an epoch; None if unknown.
    """

    validation_s: float = 0.0
    validation_batches: int = 0
    checkpoint_s: float = 0.0
    checkpoint_bytes: int = 0
    report_s: float = 0.0
    report_every_s: float = 0.2
    epoch_updates: int | None = None

    @property
    def validation_batch_s(self) -> float:
        """Seconds of one held-out batch."""
        return self.validation_s / self.validation_batches if self.validation_batches else 0.0

    def reports_per_epoch(self, update_s: float) -> float:
        """Return the number of reports in an epoch: one at its end, and others at intervals, at most one per update."""
        if self.epoch_updates is None:
            return 0.0
        return 1.0 + min(self.epoch_updates * update_s / self.report_every_s, self.epoch_updates)

    def reports_s(self, update_s: float) -> float:
        """Return the seconds of an epoch's reports."""
        return self.report_s * self.reports_per_epoch(update_s)

    def epoch_s(self, update_s: float) -> float:
        """Return the seconds of a whole epoch; 0 if its length is unknown."""
        if self.epoch_updates is None:
            return 0.0
        return self.epoch_updates * update_s + self.reports_s(update_s) + self.checkpoint_s + self.validation_s

    def facts(self, update_s: float) -> dict[str, Any]:
        """Return it as fields of `Facts`. `update_s`: seconds of an update."""
        return {
            "epoch_s": self.epoch_s(update_s),
            "report_s": self.report_s,
            "reports_per_epoch": self.reports_per_epoch(update_s),
            "checkpoint_s": self.checkpoint_s,
            "checkpoint_bytes": self.checkpoint_bytes,
            "validation_s": self.validation_s,
            "validation_batches": self.validation_batches,
        }


def measure_around(loop: Loop, progress: Callable[[str], None] = lambda _: None, *, folder: Path | None = None) -> Around:
    """Time a few reports, a few checkpoints and a few validation batches, and extrapolate to an epoch.

    Args:
        loop: The loop; neither its position nor its model changes.
        progress: Called with a message about the current measurement.
        folder: Where the run will write; the current folder by default. Written files are removed afterwards.
    """
    live = loop.live
    around = Around(epoch_updates=epoch_updates(live), report_every_s=live.around.report_every_s)
    if around.epoch_updates is None:
        return around
    with (
        tempfile.TemporaryDirectory(prefix=".hasten-", dir=_writable(folder)) as name,
        PeriodicWork(loop, Path(name)) as work,
    ):
        _measure_validation(work, around, progress)
        progress("checkpoint")
        _measure_reports(work, around)
        _measure_checkpoint(loop, work, around)
    return around


def epoch_updates(live: LiveJob) -> int | None:
    """Return the updates between two checkpoints: an epoch, or the whole run if the data has no epochs; None if unknown."""
    return live.planned_updates if live.order is None else -(-len(live.order(0)) // live.job.accumulation)


def _measure_validation(work: PeriodicWork, around: Around, progress: Callable[[str], None]) -> None:
    if work.held_out is None:
        return
    progress("validation")
    around.validation_batches = work.held_out.num_batches
    measured = min(VALIDATION_BATCHES, around.validation_batches)
    started = perf_counter()
    work.validate(max_batches=measured)
    around.validation_s = (perf_counter() - started) / measured * around.validation_batches


def _measure_reports(work: PeriodicWork, around: Around) -> None:
    started = perf_counter()
    for _ in range(REPORTS):
        work.report()
    work.wait()
    around.report_s = (perf_counter() - started) / REPORTS
    around.report_every_s = max(around.report_every_s, around.report_s / MOST_REPORTS_FRAC)


def _measure_checkpoint(loop: Loop, work: PeriodicWork, around: Around) -> None:
    seconds: list[float] = []
    while len(seconds) < SAVES and loop.ranks.agreed(sum(seconds)) < MAX_SAVES_S:
        started = perf_counter()
        work.save()
        work.wait()
        seconds.append(perf_counter() - started)
    around.checkpoint_s = median(seconds)
    around.checkpoint_bytes = work.checkpoint.path.stat().st_size


def _writable(folder: Path | None) -> Path:
    """Return the run's own folder, or the system's temporary folder if that cannot be written to."""
    wanted = folder or Path.cwd()
    return wanted if wanted.is_dir() and os.access(wanted, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
