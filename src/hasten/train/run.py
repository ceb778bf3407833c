"""Train a job from start to end: write metrics continuously, held-out results after each epoch, weights at the end."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
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
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.resume import resume_run, run_facts
from hasten.train.checkpoints.saver import Pace, Saver
from hasten.train.clock import SampledClock
from hasten.train.fallback import GoesOn, build_without_failures, fallback
from hasten.train.guards.guarded_loop import GuardedLoop
from hasten.train.guards.incidents import INCIDENTS, Incidents
from hasten.train.guards.non_finite import NonFinitePolicy
from hasten.train.guards.rollback import Rollback
from hasten.train.guards.run_guards import STACKS, Guards, Limits
from hasten.train.observer import Observe, no_one
from hasten.train.periodic import METRICS, PeriodicWork, Report
from hasten.train.process_group import is_member, join_group
from hasten.train.ranks import current_ranks
from hasten.train.records.lock import hold_folder
from hasten.train.records.log import LOG, RunLog
from hasten.train.records.record import PLAN, Origin, RunRecord, part_of
from hasten.train.trainer import Result, Trainer

STARTED_AGAIN = "HASTEN_STARTED_AGAIN"
"""Environment variable set in a process that has restarted itself, so that it does so only once."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is saved and resumed.

    Attributes:
        resume: Resume from the newest intact checkpoint, if there is one.
        anyway: Resume even if the job's code or data changed since the checkpoint.
        pace: How often to save; None saves no checkpoints.
        non_finite: How to handle NaN and infinite losses and gradients.
        limits: Thresholds of the guards.
        say: Called with messages for the user.
        observe: Follows the run, on each rank.
    """

    resume: bool = False
    anyway: bool = False
    pace: Pace | None = None
    non_finite: NonFinitePolicy = field(default_factory=NonFinitePolicy)
    limits: Limits = field(default_factory=Limits)
    say: Callable[[str], None] = print
    observe: Observe = no_one


def start_under(plan: Plan) -> None:
    """Restart the current command once with the environment variables that the plan requires, unless they are set.

    The process keeps its id, arguments, folder, open files and the rest of its environment, so a launcher (torchrun) that
    waits for it sees one process. Call it before any work that must not be done twice.

    Raises:
        PlanError: The variables are still not set after the restart, or the plan requires different values of one.
        MachineError: This machine lacks a file that a variable must name.
    """
    again = os.environ.pop(STARTED_AGAIN, "")
    required = required_environment(plan.optimizations)
    missing = missing_environment(required, started_with())
    if not missing:
        return
    if again:
        raise PlanError(
            f"This process restarted itself with {', '.join(missing)}, but it is still not set. Check whether something "
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
    """Train a job under a plan.

    Args:
        job: The job to train.
        plan: The plan to train under.
        out: Folder for `metrics.jsonl` (one line per report), `model.pt` (a state_dict that loads with
            `weights_only=True`), `hasten.toml`, `run.toml` (machine, code and outcome of the run), `log.txt` (messages),
            `incidents.jsonl` and `checkpoints/`. The weights are saved after each epoch and at the end.
        max_updates: Stop after this number of updates, if the run is longer.
        on_report: Called with the state of the run, at most a few times a second; under `async_logging` by another thread.
        options: How the run is saved and resumed; None saves no checkpoints.
        origin: How the run was started, for the record; by default the job's name.

    Raises:
        JobError: The length of the run is unknown: an iterable dataset without num_updates.
        DataError: The run cannot be resumed, because the model, the code or the data changed; or a new run would mix with
            the checkpoints of an earlier one.
        LossError: The loss became NaN or infinite, and the policy is to stop.
        MachineError: Memory ran out with a single sample, or in an update that cannot be repeated.
        HastenError: Metrics, weights or checkpoints could not be written.
    """
    options = options or RunOptions()
    if is_member():
        join_group()
    while True:
        try:
            return _train(job, plan, out, max_updates=max_updates, on_report=on_report, options=options, origin=origin)
        except GoesOn as without:
            plan, options = without.plan, replace(options, resume=without.resumes)
        gc.collect()  # the failed run, whose loader workers hold the lock of its folder: its error refers to it in a cycle


def _train(
    job: Job,
    plan: Plan,
    out: Path,
    *,
    max_updates: int | None,
    on_report: Callable[[Report], None],
    options: RunOptions,
    origin: Origin | None,
) -> Result:
    plan, live = build_without_failures(job, plan, options.say)
    planned = min(live.planned_updates or 0, max_updates or live.planned_updates or 0) or max_updates
    if planned is None:
        raise JobError(f"{type(job).__name__} reads an iterable dataset: set num_updates, or give --updates.")
    leads = current_ranks().rank == 0
    log = RunLog(options.say)
    incidents = Incidents(out / INCIDENTS if leads else None, log)
    loop = GuardedLoop(live, incidents, non_finite=options.non_finite)
    record: RunRecord | None = None
    before_s, earlier = 0.0, list[dict[str, float]]()
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
                before_s, earlier = keep_reports(out / METRICS, saved.update)
            origin = origin or Origin(target=f"{type(job).__module__}:{type(job).__qualname__}")
            part = part_of(live, plan, origin, planned=planned, world=loop.ranks.world, facts=facts)
            record = RunRecord(
                out, part, target=origin.target, updates=lambda: loop.position.update, log=log, append=options.resume
            )
            stack.enter_context(record)
            loop.clock = SampledClock(live.device)
        mine = out if leads else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hasten-")))

        def note(report: Report) -> None:
            if report.held_out:
                log.note(f"epoch {report.epoch}, update {report.update:,}: held-out {metrics_words(report.held_out)}")
            on_report(report)

        work = PeriodicWork(
            loop, mine, planned=planned, on_report=note, append=saved is not None, seconds_before=before_s, writes=leads
        )
        guards = Guards(mine / STACKS, incidents, lambda: loop.position, limits=options.limits)
        observer = stack.enter_context(options.observe(loop))
        stack.enter_context(incidents.heard_by(observer.incident))
        back = Rollback(loop, out, options.non_finite, incidents, log)
        drive = Trainer(
            loop,
            stack.enter_context(work),
            saver,
            stack.enter_context(guards),
            back,
            planned=planned,
            seen=earlier,
            observer=observer,
        )
        with fallback(plan, loop, saver, log, resumed=options.resume):
            result = drive.run()
        if record is not None and result.stopped_by is not None and result.updates < planned:
            record.stopped_by(result.stopped_by.name)
    return replace(result, went_on_from=None if saved is None else saved.update)


def keep_reports(path: Path, update: int) -> tuple[float, list[dict[str, float]]]:
    """Remove the reports of updates after `update`, which will be repeated.

    Returns:
        The seconds of training at that update, and the held-out results of the reports that stay.
    """
    if not path.exists():
        return 0.0, []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    reports = [json.loads(line) for line in lines]
    kept = [report for report in reports if report["update"] <= update]
    write_atomically(path, "".join(line for line, report in zip(lines, reports, strict=True) if report["update"] <= update))
    return _seconds_at(reports, update), [report["held_out"] for report in kept if report["held_out"]]


def _seconds_at(reports: Sequence[Mapping[str, Any]], update: int) -> float:
    """Return the seconds of training at an update, interpolated between reports and extrapolated after the last one."""
    points = [(0, 0.0), *((int(report["update"]), float(report.get("seconds", 0.0))) for report in reports)]
    first, first_s = max(point for point in points if point[0] <= update)
    last, last_s = min((point for point in points if point[0] > update), default=(2 * first, 2 * first_s))
    return first_s + (last_s - first_s) * (update - first) / (last - first) if last > first else first_s


def metrics_words(metrics: Mapping[str, float]) -> str:
    """Format metrics on one line, such as `loss 0.4213  accuracy 0.9120`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _saver_of(loop: GuardedLoop, out: Path, facts: Mapping[str, Any], options: RunOptions, log: RunLog) -> Saver | None:
    """Return the saver of the run; None if it is not to be saved."""
    if options.pace is None:
        return None
    if not options.resume:
        _refuse_to_mix(out)
    return Saver(loop, out, options.pace, facts=facts, say=log)


def _refuse_to_mix(out: Path) -> None:
    """Refuse to start a new run in a folder with checkpoints: the newest checkpoint could be of either run."""
    checkpoints = CheckpointFolder(out).all()
    if checkpoints:
        raise DataError(
            f"{out} has checkpoints of a run, up to update {checkpoints[-1].update:,}: resume it (--resume), or choose "
            f"another folder (--out)."
        )
