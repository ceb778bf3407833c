"""Train a job from start to end: metrics to a file as they come, held-out results after each epoch, weights at the end."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError, JobError, PlanError
from hasten.core.files import write_atomically
from hasten.core.job import Job
from hasten.core.optimization import joined_environment, missing_environment, required_environment
from hasten.core.plan import Plan
from hasten.core.system import started_with
from hasten.train.build import build
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.resume import resume_run, run_facts
from hasten.train.checkpoints.saver import Pace, Saver
from hasten.train.clock import SampledClock
from hasten.train.guards.guarded_loop import GuardedLoop
from hasten.train.guards.incidents import INCIDENTS, Incidents
from hasten.train.guards.non_finite import NonFinitePolicy
from hasten.train.guards.rollback import Rollback
from hasten.train.guards.run_guards import STACKS, Guards, Limits
from hasten.train.periodic import METRICS, PeriodicWork, Report
from hasten.train.process_group import is_member, join_group
from hasten.train.ranks import current_ranks
from hasten.train.records.lock import hold_folder
from hasten.train.records.log import LOG, RunLog
from hasten.train.records.record import PLAN, Origin, RunRecord, part_of
from hasten.train.trainer import Result, Trainer

STARTED_AGAIN = "HASTEN_STARTED_AGAIN"
"""Set in a process that started itself again, so that it does so once."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is saved and taken up.

    Attributes:
        resume: Go on from the newest whole checkpoint, where there is one.
        anyway: Even where the job's code or data changed since.
        pace: How often to save; None saves no checkpoints.
        non_finite: What is done about losses and gradients that are no numbers.
        limits: When the guards speak.
        say: Told what a person must know.
    """

    resume: bool = False
    anyway: bool = False
    pace: Pace | None = None
    non_finite: NonFinitePolicy = field(default_factory=NonFinitePolicy)
    limits: Limits = field(default_factory=Limits)
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
    options: RunOptions | None = None,
    origin: Origin | None = None,
) -> Result:
    """Train.

    Args:
        job: What to train.
        plan: Under which plan.
        out: Folder for `metrics.jsonl` (a line a report), `model.pt` (a state_dict, loads with `weights_only=True`),
            `hasten.toml`, `run.toml` (where it was trained, from what, and how it ended), `log.txt` (what was said),
            `incidents.jsonl` and `checkpoints/`. The weights are saved after each epoch and at the end.
        max_updates: Stop earlier.
        on_report: Told how the run stands, at most a few times a second; under `async_logging` by another thread.
        options: How it is saved and taken up; None saves no checkpoints.
        origin: How it was called, for the record; the job's own name unless given.

    Raises:
        JobError: The job says no length: an iterable dataset without num_updates.
        DataError: The run cannot be taken up: the model, the code or the data is another one; or it would begin anew, beside
            the checkpoints of an earlier one.
        LossError: The loss became NaN or infinite, and the run is to stop then.
        MachineError: Memory ran out with a single sample, or where an update cannot be done again.
        HastenError: Metrics, weights or checkpoints could not be written.
    """
    options = options or RunOptions()
    if is_member():
        join_group()
    live = build(job, plan)
    planned = min(live.planned_updates or 0, max_updates or live.planned_updates or 0) or max_updates
    if planned is None:
        raise JobError(f"{type(job).__name__} reads an iterable dataset: set num_updates, or give --updates.")
    leads = current_ranks().rank == 0
    log = RunLog(options.say)
    incidents = Incidents(out / INCIDENTS if leads else None, log)
    loop = GuardedLoop(live, incidents, non_finite=options.non_finite)
    record: RunRecord | None = None
    before_s, seen = 0.0, list[dict[str, float]]()
    with ExitStack() as stack:
        stack.callback(log.close)
        stack.callback(loop.close)
        facts = run_facts(live) if options.resume or options.pace else {}
        saved = resume_run(loop, out, facts, log, anyway=options.anyway) if options.resume else None
        saver = _saver_of(loop, out, {**facts, "plan": plan.to_dict()}, options, log)
        if saver is not None:
            stack.enter_context(saver)
        if leads:
            if saver is None:
                stack.callback(os.close, hold_folder(out, 0, log))
            log.open(out / LOG, append=options.resume)
            plan.save(out / PLAN)
            if saved is not None:
                before_s, seen = keep_reports(out / METRICS, saved.update)
            origin = origin or Origin(target=f"{type(job).__module__}:{type(job).__qualname__}")
            part = part_of(live, plan, origin, planned=planned, world=loop.ranks.world, facts=facts)
            record = RunRecord(
                out, part, target=origin.target, updates=lambda: loop.position.update, log=log, append=options.resume
            )
            stack.enter_context(record)
            loop.clock = SampledClock(live.device)
        mine = out if leads else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hasten-")))

        def told(report: Report) -> None:
            if report.held_out:
                log.note(f"epoch {report.epoch}, update {report.update:,}: held-out {metrics_words(report.held_out)}")
            on_report(report)

        work = PeriodicWork(
            loop, mine, planned=planned, on_report=told, append=saved is not None, seconds_before=before_s, writes=leads
        )
        guards = Guards(mine / STACKS, incidents, lambda: loop.position, limits=options.limits)
        back = Rollback(loop, out, options.non_finite, incidents, log)
        drive = Trainer(
            loop, stack.enter_context(work), saver, stack.enter_context(guards), back, planned=planned, seen=seen
        )
        result = drive.run()
        if record is not None and result.stopped_by is not None and result.updates < planned:
            record.stopped_by(result.stopped_by.name)
    return replace(result, went_on_from=None if saved is None else saved.update)


def keep_reports(path: Path, update: int) -> tuple[float, list[dict[str, float]]]:
    """Take back the reports of updates that will be done again.

    Returns:
        Of those that stay: the seconds of training at the last one, and all held-out results.
    """
    if not path.exists():
        return 0.0, []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["update"] <= update]
    write_atomically(path, "".join(kept))
    read = [json.loads(line) for line in kept]
    return (float(read[-1].get("seconds", 0.0)) if read else 0.0), [line["held_out"] for line in read if line["held_out"]]


def metrics_words(metrics: Mapping[str, float]) -> str:
    """Metrics on one line, such as `loss 0.4213  accuracy 0.9120`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _saver_of(loop: GuardedLoop, out: Path, facts: Mapping[str, Any], options: RunOptions, log: RunLog) -> Saver | None:
    """What saves the run, where it is to be saved."""
    if options.pace is None:
        return None
    if not options.resume:
        _refuse_to_mix(out)
    return Saver(loop, out, options.pace, facts=facts, say=log)


def _refuse_to_mix(out: Path) -> None:
    """Refuse to begin anew beside checkpoints: the newest would be the one with the most updates, of either run."""
    there = CheckpointFolder(out).all()
    if there:
        raise DataError(
            f"{out} has checkpoints of a run, up to update {there[-1].update:,}: go on with it (--resume), or choose "
            f"another folder (--out)."
        )
