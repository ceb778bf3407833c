"""Train a job from start to end: metrics to a file as they come, held-out results after each epoch, weights at the end."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from upshift.core.errors import JobError, PlanError
from upshift.core.job import Job
from upshift.core.optimization import joined_environment, missing_environment, required_environment
from upshift.core.plan import Plan
from upshift.core.system import started_with
from upshift.train.around import AroundWork, Report
from upshift.train.build import build
from upshift.train.group import is_member, join_group
from upshift.train.loop import Loop

STARTED_AGAIN = "UPSHIFT_STARTED_AGAIN"
"""Set in a process that started itself again, so that it does so once."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to: updates, samples, seconds until all was written (validation included), last held-out metrics."""

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
        on_report: Told how the run stands, at most a few times a second; under `async_logging` by another thread.

    Raises:
        JobError: The job says no length: an iterable dataset without num_updates.
        UpshiftError: Metrics or weights could not be written.
    """
    if is_member():
        join_group()
    live = build(job, plan)
    planned = min(live.planned_updates or 0, max_updates or live.planned_updates or 0) or max_updates
    if planned is None:
        raise JobError(f"{type(job).__name__} reads an iterable dataset: set num_updates, or give --updates.")
    loop = Loop(live)
    leads = loop.ranks.rank == 0
    with ExitStack() as stack:
        stack.callback(loop.close)
        if leads:
            out.mkdir(parents=True, exist_ok=True)
            plan.save(out / "upshift.toml")
        else:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upshift-")))
        work = AroundWork(loop, out, planned=planned, on_report=on_report, writes=leads)
        return _run(loop, stack.enter_context(work), planned)


def _run(loop: Loop, around: AroundWork, planned: int) -> Result:
    live, found, started = loop.live, dict[str, float](), perf_counter()
    per_epoch = planned if live.order is None else -(-len(live.order(0)) // live.job.accumulation)
    try:
        while loop.position.update < planned:
            loop.run(min(per_epoch, planned - loop.position.update), on_update=around.after_update)
            found = around.validate()
            around.report(found)
            around.save()
        around.wait()
    except KeyboardInterrupt:
        if live.sync is None or not live.sync.each_pass:  # whole weights of shards would need all ranks at the same place
            around.save()
        raise
    seconds = perf_counter() - started
    samples = int(loop.ranks.sum(torch.tensor(loop.position.samples, device=live.device)))
    return Result(updates=loop.position.update, samples=samples, seconds=seconds, held_out=found)
