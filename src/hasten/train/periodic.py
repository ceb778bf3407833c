"""The periodic work of a run around its updates: metric reports, saving weights, validation passes.

`hasten run` drives it, a trial times it, and a trace rehearses it. `LiveJob.around` defines how each is done.
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
"""Largest share of the training time that reports may take. Slow reports are written less often than requested."""
REHEARSED_BATCHES = 2
"""Number of batches in a rehearsed validation pass."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of a run.

    Attributes:
        update: Updates completed.
        planned: Updates of the whole run.
        epoch: The current epoch, counted from 1.
        loss: The last loss that was read; NaN before the first.
        samples_per_s: Samples per second since the last report; of an earlier span if no update was done since then.
        held_out: Held-out metrics, directly after an epoch; otherwise empty.
        samples: Samples seen by all ranks, in the time of `seconds`.
        seconds: Seconds of the run. For a resumed run, includes the earlier parts up to the updates they were resumed from
            if their reports exist.
        memory_bytes: Main memory of this process.
        device_bytes: GPU memory reserved by this process; None without a GPU.
        phases: Phase name -> share of the updates timed since the last report; empty if none was timed.
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
    """Does the periodic work of a loop. As a context manager, it waits for pending writes on exit.

    Args:
        loop: The loop.
        out: Folder for `metrics.jsonl` (one line per report) and `model.pt` (a state_dict that loads with
            `weights_only=True`).
        planned: Updates of the whole run.
        on_report: Called with each report. If lines are written in the background, the thread that writes them calls it.
        held_out: The held-out data; by default that of the job.
        append: Append to the reports of an earlier part of the run.
        seconds_before: Seconds of the earlier parts.
        writes: Whether this rank reports and saves. The other ranks only take part in collective operations.

    Raises:
        HastenError: A file could not be written. Errors of background work are raised by the next call.
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
        self._untimed = loop.position.samples if append and not seconds_before else 0  # their seconds are not known
        self._last_speed = 0.0
        self._may_fail_later = in_background or live.around.checkpoint_background
        self._every_s = live.around.report_every_s
        self._due = self._last_report + self._every_s

    def after_update(self) -> None:
        """Write a report if one is due, and raise errors of background work."""
        if self._may_fail_later:
            self._metrics.check()
            self.checkpoint.check()
        now = perf_counter()
        if now >= self._due and self._loop.losses:
            self.report()
            done = perf_counter()
            self._due = max(now + self._every_s, done + (done - now) / MOST_REPORTS_FRAC) if self._every_s else now

    def report(self, held_out: dict[str, float] | None = None) -> None:
        """Report the state of the run, with held-out metrics if there are new ones."""
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
            samples_per_s=self._speed(samples, now - self._last_report),
            held_out=held_out or {},
            samples=self._loop.ranks.world * (position.samples - self._untimed),
            seconds=round(now - self._started, 3),
            memory_bytes=host_bytes(),
            device_bytes=torch.cuda.memory_reserved(device) if device.type == "cuda" else None,
            phases=self._loop.clock.take_shares() if isinstance(self._loop.clock, SampledClock) else {},
        )
        self._last_report, self._last_samples = now, position.samples
        self._metrics.write(lambda: self._line(report))

    def _speed(self, samples: int, seconds: float) -> float:
        """Return samples per second; the last known speed if no update was done since then."""
        if samples > 0 and seconds > 0:
            self._last_speed = samples / seconds
        return self._last_speed

    def went_back(self) -> None:
        """Restart the throughput count after a rollback to an earlier update."""
        self._last_report, self._last_samples = perf_counter(), self._loop.position.samples

    def save(self) -> None:
        """Save the current weights. The old file stays until the new one is complete."""
        state = self._loop.live.whole_state()
        if self._writes:
            self.checkpoint.save(state)

    def validate(self, *, max_batches: int | None = None) -> dict[str, float]:
        """Measure the held-out data, and return its metrics; empty if the job has none."""
        return {} if self.held_out is None else self.held_out.measure(max_batches=max_batches)

    def wait(self) -> None:
        """Wait until every line is written and the weights are on disk."""
        self._metrics.flush()
        self.checkpoint.wait()

    def close(self) -> None:
        """Wait for pending writes, and close the files."""
        try:
            self._metrics.close()
        finally:
            self.checkpoint.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _line(self, report: Report) -> str:
        self._on_report(report)
        return json.dumps(vars(report))


def rehearse(loop: Loop) -> None:
    """Do each kind of periodic work that a plan changes once, in a temporary folder, so that its counters show it.

    Args:
        loop: The loop. Its position and its model do not change.
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
