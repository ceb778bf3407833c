"""Train a job from start to end: metrics to a file as they come, held-out results after each epoch, weights at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from upshift.core.errors import JobError, PlanError
from upshift.core.files import write_atomically
from upshift.core.job import Job
from upshift.core.optimization import joined_environment, missing_environment, required_environment
from upshift.core.plan import Plan
from upshift.core.system import started_with
from upshift.train.around import METRICS, AroundWork, Report
from upshift.train.build import build
from upshift.train.group import is_member, join_group
from upshift.train.loop import Loop
from upshift.train.records.log import LOG, RunLog
from upshift.train.records.record import PLAN, Origin, RunRecord, part_of
from upshift.train.saving.facts import run_facts
from upshift.train.saving.resume import go_on
from upshift.train.saving.saver import Pace, Saver, hold_folder
from upshift.train.stop import StopRequest
from upshift.train.vitals import SampledClock

STARTED_AGAIN = "UPSHIFT_STARTED_AGAIN"
"""Set in a process that started itself again, so that it does so once."""


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


@dataclass(frozen=True, kw_only=True)
class Going:
    """How a run is saved and taken up.

    Attributes:
        resume: Go on from the newest whole checkpoint, where there is one.
        anyway: Even where the job's code or data changed since.
        pace: How often to save; None saves no checkpoints.
        say: Told what a person must know.
    """

    resume: bool = False
    anyway: bool = False
    pace: Pace | None = None
    say: Callable[[str], None] = print


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
    going: Going | None = None,
    origin: Origin | None = None,
) -> Result:
    """Train.

    Args:
        job: What to train.
        plan: Under which plan.
        out: Folder for `metrics.jsonl` (a line a report), `model.pt` (a state_dict, loads with `weights_only=True`),
            `upshift.toml`, `run.toml` (where it was trained, from what, and how it ended), `log.txt` (what was said) and
            `checkpoints/`. The weights are saved after each epoch and at the end.
        max_updates: Stop earlier.
        on_report: Told how the run stands, at most a few times a second; under `async_logging` by another thread.
        going: How it is saved and taken up; None saves no checkpoints.
        origin: How it was called, for the record; the job's own name unless given.

    Raises:
        JobError: The job says no length: an iterable dataset without num_updates.
        DataError: The run cannot be taken up: the model, the code or the data is another one.
        UpshiftError: Metrics, weights or checkpoints could not be written.
    """
    going = going or Going()
    if is_member():
        join_group()
    live = build(job, plan)
    planned = min(live.planned_updates or 0, max_updates or live.planned_updates or 0) or max_updates
    if planned is None:
        raise JobError(f"{type(job).__name__} reads an iterable dataset: set num_updates, or give --updates.")
    loop = Loop(live)
    leads = loop.ranks.rank == 0
    log = RunLog(going.say)
    record: RunRecord | None = None
    before_s = 0.0
    with ExitStack() as stack:
        stack.callback(log.close)
        stack.callback(loop.close)
        facts = run_facts(live) if going.resume or going.pace else {}
        saved = go_on(loop, out, facts, log, anyway=going.anyway) if going.resume else None
        saver = None
        if going.pace is not None:
            saver = Saver(loop, out, going.pace, facts={**facts, "plan": plan.to_dict()}, say=log)
            stack.callback(saver.close)
        if leads:
            if saver is None:
                stack.callback(os.close, hold_folder(out, 0, log))
            log.open(out / LOG, append=going.resume)
            plan.save(out / PLAN)
            if saved is not None:
                before_s = keep_reports(out / METRICS, saved.update)
            origin = origin or Origin(target=f"{type(job).__module__}:{type(job).__qualname__}")
            part = part_of(live, plan, origin, planned=planned, world=loop.ranks.world, facts=facts)
            record = RunRecord(
                out, part, target=origin.target, updates=lambda: loop.position.update, log=log, append=going.resume
            )
            stack.enter_context(record)
            loop.clock = SampledClock(live.device)
        else:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upshift-")))

        def told(report: Report) -> None:
            if report.held_out:
                log.note(f"epoch {report.epoch}, update {report.update:,}: held-out {metrics_words(report.held_out)}")
            on_report(report)

        work = AroundWork(
            loop, out, planned=planned, on_report=told, append=saved is not None, seconds_before=before_s, writes=leads
        )
        result = _run(loop, stack.enter_context(work), planned, saver)
        if record is not None and result.stopped_by is not None and result.updates < planned:
            record.stopped_by(result.stopped_by.name)
    return replace(result, went_on_from=None if saved is None else saved.update)


def keep_reports(path: Path, update: int) -> float:
    """Take back the reports of updates that will be done again; the seconds of training at the last one that stays."""
    if not path.exists():
        return 0.0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["update"] <= update]
    write_atomically(path, "".join(kept))
    return float(json.loads(kept[-1]).get("seconds", 0.0)) if kept else 0.0


def metrics_words(metrics: Mapping[str, float]) -> str:
    """Metrics on one line, such as `loss 0.4213  accuracy 0.9120`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


class _Stopped(Exception):  # noqa: N818  no error: somebody asked for it
    """A signal asked the run to end, and it stands between two updates."""


def _run(loop: Loop, around: AroundWork, planned: int, saver: Saver | None) -> Result:
    live, found, started = loop.live, dict[str, float](), perf_counter()
    per_epoch = planned if live.order is None else -(-len(live.order(0)) // live.job.accumulation)
    best = Best(live.job)

    with StopRequest() as stop:

        def after_update() -> None:
            around.after_update()
            ends = loop.position.update % per_epoch == 0 or loop.position.update >= planned
            asked, due = _agreed(loop, stop.signal is not None, saver)
            if saver is not None and not ends:  # at the end of an epoch it is saved with its held-out results
                saver.after_update(due)
            if asked:
                raise _Stopped

        try:
            while loop.position.update < planned:
                due = per_epoch - loop.position.update % per_epoch
                loop.run(min(due, planned - loop.position.update), on_update=after_update)
                found = around.validate()
                around.report(found)
                around.save()
                if saver is not None:
                    saver.save(best=best.is_better(found))
        except _Stopped:
            if live.sync is None or not live.sync.each_pass:
                around.save()
            if saver is not None:
                saver.save(wait=True)
        around.wait()
        seconds = perf_counter() - started
        samples = int(loop.ranks.sum(torch.tensor(loop.position.samples, device=live.device)))
        return Result(updates=loop.position.update, samples=samples, seconds=seconds, held_out=found, stopped_by=stop.signal)


def _agreed(loop: Loop, asked: bool, saver: Saver | None) -> tuple[bool, bool | None]:  # noqa: FBT001
    """Whether any rank was asked to end, and whether rank 0 wants a checkpoint: what all ranks must do at one update."""
    ranks = loop.ranks
    if ranks.world == 1:
        return asked, None
    due = saver is not None and ranks.rank == 0 and saver.is_due()
    both = ranks.sum(torch.tensor([float(asked), float(due)], device=loop.live.device))
    return bool(both[0] > 0), bool(both[1] > 0)


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
