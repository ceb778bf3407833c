"""The periodic work of a run beside its updates: metric reports, weights, validation passes.

`hasten run` drives it, a trial times it, and a trace rehearses it. How each is done is what `LiveJob.around` says.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

import torch

from hasten.train.clock import SampledClock
from hasten.train.guards.memory_growth import host_bytes
from hasten.train.loop import Loop
from hasten.train.metrics_file import MetricsFile
from hasten.train.validate import HeldOut
from hasten.train.weights_file import WeightsFile

METRICS, WEIGHTS = "metrics.jsonl", "model.pt"
MOST_REPORTS_FRAC = 0.0025
"""Share of the training time that reports may take: dear ones come less often than they were asked for."""
REHEARSED_BATCHES = 2


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a run stands.

    Attributes:
        update: Updates done.
        planned: Updates in all.
        epoch: The present epoch, counted from 1.
        loss: The last loss that was read; NaN before the first.
        samples_per_s: Since the last report.
        held_out: Held-out metrics, right after an epoch.
        samples: Seen by all ranks.
        seconds: Of the run, its earlier parts included, up to the updates they are continued from.
        memory_bytes: Main memory of this process.
        device_bytes: GPU memory that this process reserved; None without a GPU.
        phases: Shares of the updates that were timed since the last report; empty where none was.
    """

    update: int
    planned: int
    epoch: int
    loss: float
    samples_per_s: float
    held_out: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0
    device_bytes: int | None = None
    phases: dict[str, float] = field(default_factory=dict)


class PeriodicWork:
    """Does the periodic work of a loop. A context manager: leaving it waits for pending writes.

    Args:
        loop: The loop.
        out: Folder for `metrics.jsonl` (a line a report) and `model.pt` (a state_dict, loads with `weights_only=True`).
        planned: Updates of the whole run.
        on_report: Told each report; by the thread that writes the lines, where they are written in the background.
        held_out: The held-out data; looked for in the job where it is not given.
        append: Go on behind the reports of an earlier part of the run.
        seconds_before: Of the earlier parts.
        writes: Whether this rank is the one that reports and saves; the others take part in what needs all.

    Raises:
        HastenError: Something could not be written; from the call that met it or, for background work, from the next one.
    """

    def __init__(
        self,
        loop: Loop,
        out: Path,
        *,
        planned: int = 0,
        on_report: Callable[[Report], None] = lambda _: None,
        held_out: HeldOut | None = None,
        append: bool = False,
        seconds_before: float = 0.0,
        writes: bool = True,
    ) -> None:
        self._writes = writes
        self._loop, self._planned, self._on_report = loop, planned, on_report
        live = loop.live
        self.held_out = held_out or HeldOut.where_given(live)
        in_background = live.around.report_async
        self._metrics = MetricsFile(out / METRICS, append=append, background=in_background, count=live.count)
        self.checkpoint = WeightsFile(out / WEIGHTS, live.around, live.count)
        self._last_report, self._last_samples = perf_counter(), loop.position.samples
        self._started = self._last_report - seconds_before
        self._may_fail_later = in_background or live.around.checkpoint_background
        self._every_s = live.around.report_every_s
        self._due = self._last_report + self._every_s

    def after_update(self) -> None:
        """Report where it is time to, and raise what went wrong in the background."""
        if self._may_fail_later:
            self._metrics.check()
            self.checkpoint.check()
        now = perf_counter()
        if now >= self._due and self._loop.losses:
            self.report()
            done = perf_counter()
            self._due = max(now + self._every_s, done + (done - now) / MOST_REPORTS_FRAC) if self._every_s else now

    def report(self, held_out: dict[str, float] | None = None) -> None:
        """Report how the run stands, with held-out metrics where there are new ones."""
        if not self._writes:
            return
        now, position = perf_counter(), self._loop.position
        samples = self._loop.ranks.world * (position.samples - self._last_samples)
        device = self._loop.live.device
        report = Report(
            update=position.update,
            planned=self._planned,
            epoch=position.epoch + 1,
            loss=self._loop.losses[-1] if self._loop.losses else float("nan"),
            samples_per_s=samples / max(now - self._last_report, 1e-9),
            held_out=held_out or {},
            samples=self._loop.ranks.world * position.samples,
            seconds=round(now - self._started, 3),
            memory_bytes=host_bytes(),
            device_bytes=torch.cuda.memory_reserved(device) if device.type == "cuda" else None,
            phases=self._loop.clock.take_shares() if isinstance(self._loop.clock, SampledClock) else {},
        )
        self._last_report, self._last_samples = now, position.samples
        self._metrics.write(lambda: self._told(report))

    def went_back(self) -> None:
        """The run stands at an earlier update now: count from there."""
        self._last_report, self._last_samples = perf_counter(), self._loop.position.samples

    def save(self) -> None:
        """Save the weights as they are now; the old file stays until the new one is whole."""
        state = self._loop.live.whole_state()
        if self._writes:
            self.checkpoint.save(state)

    def validate(self, *, max_batches: int | None = None) -> dict[str, float]:
        """Measure the held-out data; empty where the job has none."""
        return {} if self.held_out is None else self.held_out.measure(max_batches=max_batches)

    def wait(self) -> None:
        """Wait until every line is written and the checkpoint is durable."""
        self._metrics.flush()
        self.checkpoint.wait()

    def close(self) -> None:
        """Wait for all that is on its way, and let the files go."""
        try:
            self._metrics.close()
        finally:
            self.checkpoint.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _told(self, report: Report) -> str:
        self._on_report(report)
        return json.dumps(vars(report))


def rehearse(loop: Loop) -> None:
    """Do once, in a temporary folder, each kind of work that a plan does in its own way: its counters then tell of it.

    Args:
        loop: The loop; neither its position nor its model changes.
    """
    settings = loop.live.around
    writes = settings.checkpoint_background
    validates = settings.validation_batches > 1 or settings.validation_contexts
    if not (settings.report_async or writes or validates):
        return
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder, PeriodicWork(loop, Path(folder)) as work:
        if settings.report_async:
            work.report()
        if writes:
            work.save()
        if validates:
            work.validate(max_batches=REHEARSED_BATCHES)
