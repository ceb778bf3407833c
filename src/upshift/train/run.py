"""Train a job from start to end: metrics to a file as they come, held-out results after each epoch, weights at the end."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TextIO

import torch

from upshift.core.errors import JobError, PlanError
from upshift.core.files import write_atomically
from upshift.core.job import Job
from upshift.core.optimization import joined_environment, missing_environment, required_environment
from upshift.core.plan import Plan
from upshift.core.system import started_with
from upshift.train.build import build
from upshift.train.loop import Loop
from upshift.train.validate import HeldOut

REPORT_EVERY_S = 0.2
STARTED_AGAIN = "UPSHIFT_STARTED_AGAIN"
"""Set in a process that started itself again, so that it does so once."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a run stands.

    Attributes:
        update: Updates done.
        planned: Updates in all.
        epoch: The present epoch, counted from 1.
        loss: The last loss that was read.
        samples_per_s: Since the last report.
        held_out: Held-out metrics, right after an epoch.
    """

    update: int
    planned: int
    epoch: int
    loss: float
    samples_per_s: float
    held_out: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to: updates, samples, seconds of training (validation included), last held-out metrics."""

    updates: int
    samples: int
    seconds: float
    held_out: dict[str, float]


def start_under(plan: Plan) -> None:
    """Start this very command again, once, with the variables the plan requires, unless they are in force.

    The process keeps its id, arguments, folder, open files and the rest of its environment, so a launcher (torchrun) that
    waits for it sees one process. Call it before anything is done that must not be done twice.

    Raises:
        PlanError: The variables are not in force though the process was started again, or the plan contradicts itself.
        MachineError: This machine lacks what a variable must name.
    """
    again = os.environ.pop(STARTED_AGAIN, "")
    required = required_environment(plan.optimizations)
    missing = missing_environment(required, started_with())
    if not missing:
        return
    if again:
        raise PlanError(
            f"This process started itself again with {', '.join(missing)}, and still lacks it. Look whether something "
            f"changes the environment while Python starts (a wrapper script, sitecustomize), or set it in the shell."
        )
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**joined_environment(required, os.environ), STARTED_AGAIN: "yes"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606  the same command again


def train(
    job: Job,
    plan: Plan,
    out: Path,
    *,
    max_updates: int | None = None,
    on_report: Callable[[Report], None] = lambda _: None,
) -> Result:
    """Train.

    Args:
        job: What to train.
        plan: Under which plan.
        out: Folder for `metrics.jsonl` (a line a report), `model.pt` (a state_dict, loads with `weights_only=True`) and
            `upshift.toml`. The weights are saved after each epoch, and when Ctrl-C ends the run.
        max_updates: Stop earlier.
        on_report: Told how the run stands, at most a few times a second.

    Raises:
        JobError: The job says no length: an iterable dataset without num_updates.
    """
    live = build(job, plan)
    planned = min(live.planned_updates or 0, max_updates or live.planned_updates or 0) or max_updates
    if planned is None:
        raise JobError(f"{type(job).__name__} reads an iterable dataset: set num_updates, or give --updates.")
    out.mkdir(parents=True, exist_ok=True)
    plan.save(out / "upshift.toml")
    loop = Loop(live)
    runner = _Runner(loop, planned, on_report, out)
    try:
        with (out / "metrics.jsonl").open("w", encoding="utf-8") as file:
            return runner.run(file)
    except KeyboardInterrupt:
        runner.save()
        raise
    finally:
        loop.close()


class _Runner:
    def __init__(self, loop: Loop, planned: int, on_report: Callable[[Report], None], out: Path) -> None:
        self.loop, self.planned, self.on_report, self.out = loop, planned, on_report, out
        self.held_out = HeldOut.where_given(loop.live)
        self.last_report = self.started = perf_counter()
        self.last_samples = 0
        self.found: dict[str, float] = {}

    def run(self, file: TextIO) -> Result:
        live, loop = self.loop.live, self.loop
        per_epoch = self.planned if live.order is None else -(-len(live.order(0)) // live.job.accumulation)
        while loop.position.update < self.planned:
            loop.run(min(per_epoch, self.planned - loop.position.update), on_update=lambda: self._maybe_report(file))
            if self.held_out is not None:
                self.found = self.held_out.measure()
            self._report(file, self.found)
            self.save()
        seconds = perf_counter() - self.started
        return Result(updates=loop.position.update, samples=loop.position.samples, seconds=seconds, held_out=self.found)

    def save(self) -> None:
        """Write the weights as they are now; the old file stays until the new one is whole."""
        content = io.BytesIO()
        torch.save(self.loop.live.model.state_dict(), content)
        write_atomically(self.out / "model.pt", content.getvalue())

    def _maybe_report(self, file: TextIO) -> None:
        if self.loop.losses and perf_counter() - self.last_report >= REPORT_EVERY_S:
            self._report(file, {})

    def _report(self, file: TextIO, held_out: dict[str, float]) -> None:
        now, position = perf_counter(), self.loop.position
        report = Report(
            update=position.update,
            planned=self.planned,
            epoch=position.epoch + 1,
            loss=self.loop.losses[-1],
            samples_per_s=(position.samples - self.last_samples) / max(now - self.last_report, 1e-9),
            held_out=held_out,
        )
        self.last_report, self.last_samples = now, position.samples
        file.write(json.dumps(vars(report)) + "\n")
        file.flush()
        self.on_report(report)
