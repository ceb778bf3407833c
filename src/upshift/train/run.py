"""Train a job from start to end: metrics to a file as they come, held-out results after each epoch, weights at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import torch

from upshift.core.errors import DataError, JobError, PlanError
from upshift.core.files import write_atomically
from upshift.core.job import Job
from upshift.core.optimization import joined_environment, missing_environment, required_environment
from upshift.core.plan import Plan
from upshift.core.system import started_with
from upshift.train.around import METRICS, AroundWork, Report
from upshift.train.build import build
from upshift.train.group import is_member, join_group, progress_for_launcher
from upshift.train.guards.back import WayBack
from upshift.train.guards.incidents import INCIDENTS, Incidents
from upshift.train.guards.loop import GuardedLoop, RollBack
from upshift.train.guards.numbers import Numbers
from upshift.train.guards.watch import Guards, Limits
from upshift.train.loop import Loop
from upshift.train.ranks import current_ranks
from upshift.train.saving.facts import run_facts
from upshift.train.saving.folder import CheckpointFolder
from upshift.train.saving.resume import go_on
from upshift.train.saving.saver import Pace, Saver, Turn
from upshift.train.stop import StopRequest

STACKS = "stacks"
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
        numbers: What is done about losses and gradients that are no numbers.
        limits: When the guards speak.
        say: Told what a person must know.
    """

    resume: bool = False
    anyway: bool = False
    pace: Pace | None = None
    numbers: Numbers = field(default_factory=Numbers)
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
    going: Going | None = None,
) -> Result:
    """Train.

    Args:
        job: What to train.
        plan: Under which plan.
        out: Folder for `metrics.jsonl` (a line a report), `model.pt` (a state_dict, loads with `weights_only=True`),
            `upshift.toml`, `checkpoints/` and `incidents.jsonl`. The weights are saved after each epoch and at the end.
        max_updates: Stop earlier.
        on_report: Told how the run stands, at most a few times a second; under `async_logging` by another thread.
        going: How it is saved and taken up; None saves no checkpoints.

    Raises:
        JobError: The job says no length: an iterable dataset without num_updates.
        DataError: The run cannot be taken up: the model, the code or the data is another one; or it would begin anew, beside
            the checkpoints of an earlier one.
        LossError: The loss became NaN or infinite, and the run is to stop then.
        MachineError: Memory ran out with a single sample, or where an update cannot be done again.
        UpshiftError: Metrics, weights or checkpoints could not be written.
    """
    going = going or Going()
    if is_member():
        join_group()
    live = build(job, plan)
    planned = min(live.planned_updates or 0, max_updates or live.planned_updates or 0) or max_updates
    if planned is None:
        raise JobError(f"{type(job).__name__} reads an iterable dataset: set num_updates, or give --updates.")
    leads = current_ranks().rank == 0
    incidents = Incidents(out / INCIDENTS if leads else None, going.say)
    loop = GuardedLoop(live, incidents, numbers=going.numbers)
    with ExitStack() as stack:
        stack.callback(loop.close)
        facts = run_facts(live) if going.resume or going.pace else {}
        saved = go_on(loop, out, facts, going.say, anyway=going.anyway) if going.resume else None
        saver = None
        if going.pace is not None:
            if not going.resume:
                _refuse_to_mix(out)
            saver = Saver(loop, out, going.pace, facts={**facts, "plan": plan.to_dict()}, say=going.say)
            stack.enter_context(saver)
        if leads:
            out.mkdir(parents=True, exist_ok=True)
            plan.save(out / "upshift.toml")
        if leads and saved is not None:
            keep_reports(out / METRICS, saved.update)
        mine = out if leads else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upshift-")))
        work = AroundWork(loop, mine, planned=planned, on_report=on_report, append=saved is not None, writes=leads)
        guards = Guards(mine / STACKS, incidents, lambda: loop.position, limits=going.limits)
        back = WayBack(loop, out, going.numbers, incidents, going.say)
        result = _run(_Parts(loop, stack.enter_context(work), saver, stack.enter_context(guards), back), planned)
    return replace(result, went_on_from=None if saved is None else saved.update)


def keep_reports(path: Path, update: int) -> None:
    """Take back the reports of updates that will be done again."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["update"] <= update]
    write_atomically(path, "".join(kept))


def _refuse_to_mix(out: Path) -> None:
    """Refuse to begin anew beside checkpoints: the newest would be the one with the most updates, of either run."""
    there = CheckpointFolder(out).all()
    if there:
        raise DataError(
            f"{out} has checkpoints of a run, up to update {there[-1].update:,}: go on with it (--resume), or choose "
            f"another folder (--out)."
        )


class _Stopped(Exception):  # noqa: N818  no error: somebody asked for it
    """A signal asked the run to end, and it stands between two updates."""


@dataclass
class _Parts:
    """What a run consists of."""

    loop: Loop
    around: AroundWork
    saver: Saver | None
    guards: Guards
    way_back: WayBack


def _run(parts: _Parts, planned: int) -> Result:
    loop, around, saver, guards = parts.loop, parts.around, parts.saver, parts.guards
    live, found, started = loop.live, dict[str, float](), perf_counter()
    per_epoch = planned if live.order is None else -(-len(live.order(0)) // live.job.accumulation)
    best = Best(live.job)
    tell_launcher = progress_for_launcher()
    tell_launcher(loop.position.update)
    asked = False

    with StopRequest() as stop:

        def after_update() -> None:
            nonlocal asked
            guards.after_update()
            around.after_update()
            tell_launcher(loop.position.update)
            asked, turn = _agreed(loop, stop.signal is not None, saver)
            if loop.position.update % per_epoch == 0 or loop.position.update >= planned:
                return  # at the end of an epoch it is saved with its held-out results
            if saver is not None:
                saver.after_update(turn)
            if asked:
                raise _Stopped

        try:
            if loop.position.update >= planned:
                around.save()  # it was killed after its last checkpoint, and maybe before its weights were there
            while loop.position.update < planned and not asked:
                due = per_epoch - loop.position.update % per_epoch
                try:
                    loop.run(min(due, planned - loop.position.update), on_update=after_update)
                except RollBack as wrong:
                    with guards.during("rollback"):
                        parts.way_back.go(wrong, saver)
                    around.went_back()
                    continue
                with guards.during("validation"):
                    found = around.validate()
                with guards.during("checkpoint"):
                    around.report(found)
                    around.save()
                    if saver is not None:
                        saver.save(best=best.is_better(found))
        except _Stopped:
            with guards.during("last checkpoint"):
                around.save()
                if saver is not None:
                    saver.save(wait=True)
        with guards.during("last write"):
            around.wait()
        seconds = perf_counter() - started
        samples = int(loop.ranks.sum(torch.tensor(loop.position.samples, device=live.device)))
        heard = loop.ranks.union([stop.signal.name] if stop.signal else [])  # by name SIGINT comes first
        return Result(
            updates=loop.position.update,
            samples=samples,
            seconds=seconds,
            held_out=found,
            stopped_by=signal.Signals[heard[0]] if heard else None,
        )


def _agreed(loop: Loop, asked: bool, saver: Saver | None) -> tuple[bool, Turn | None]:  # noqa: FBT001
    """Whether any rank was asked to end, and what is to be done about checkpoints: what all ranks do at the same update."""
    ranks = loop.ranks
    if ranks.world == 1:
        return asked, None
    mine = Turn(written=True, due=False) if saver is None else saver.turn()
    told = [float(asked), float(not mine.written), float(ranks.rank == 0 and mine.due)]
    any_asked, any_writes, due = (number > 0 for number in ranks.sum(torch.tensor(told, device=loop.live.device)).tolist())
    return any_asked, Turn(written=not any_writes, due=due and not any_writes)


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
