"""`hasten run`: train a job under a plan."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.progress import TrainingProgress
from hasten.cli.say import RanksOption, console, errors, refuse_of_a_script, script_command
from hasten.core.errors import HastenError, PlanError
from hasten.core.optimization import joined_environment, required_environment
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.script.entry.launch import exit_like, run_under
from hasten.script.plan.reach import beyond
from hasten.train.checkpoints.saver import Pace
from hasten.train.guards.non_finite import NonFinitePolicy
from hasten.train.launch import launch, say_on_stderr
from hasten.train.process_group import end_rank, is_member, leave_group, restarted, stay_with_launcher, was_launched
from hasten.train.ray_launch import launch_on_ray
from hasten.train.records.record import Origin
from hasten.train.run import RunOptions, start_under, train
from hasten.train.trainer import Result
from hasten.tune.scripts.subject import check_command

DEFAULT_OUT = Path("hasten-run")
STALE = 3
"""Exit status of a script that ended well, but may have trained on samples that it had changed meanwhile."""


class OnNan(StrEnum):
    """What `--on-nan` takes: the policies of `NonFinitePolicy`."""

    STOP = "stop"
    SKIP = "skip"
    ROLLBACK = "rollback"


def run(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script, after --.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    plan: Annotated[Path | None, typer.Option(help="The plan to train under; none trains the job as it is.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for metrics.jsonl and model.pt.")] = DEFAULT_OUT,
    updates: Annotated[int | None, typer.Option(help="Stop after so many updates.", min=1)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest whole checkpoint, where there is one.")
    ] = False,
    resume_anyway: Annotated[
        bool, typer.Option("--resume-anyway", help="The same, although the job's code or data changed.")
    ] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=0, help="Updates between checkpoints; chosen by cost unless given, 0 for none.")
    ] = None,
    checkpoint_overhead: Annotated[float, typer.Option(help="Share of the time that checkpoints may take.")] = 0.02,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that stay, beside the best.")] = 3,
    on_nan: Annotated[
        OnNan, typer.Option(help="A loss or gradient that is NaN or infinite: stop, skip the update, or roll back.")
    ] = OnNan.STOP,
    ranks: RanksOption = 1,
    ray: Annotated[
        bool, typer.Option("--ray", help="Start the ranks on a Ray cluster; a local one unless RAY_ADDRESS is set.")
    ] = False,
    restarts: Annotated[int, typer.Option(min=0, help="Go on so often from the newest checkpoint, where a rank dies.")] = 0,
) -> None:
    """Train the job under a plan: progress, metrics, held-out results each epoch, checkpoints, weights at the end.

    It is safe to kill: --resume goes on as if nothing had happened. SIGTERM and SIGUSR1 save and exit 0, Ctrl-C saves and
    exits 130.

    With --ranks it starts itself so many times; under torchrun the ranks are those that torchrun started. With --restarts it
    starts all ranks again where one died, with --resume; torchrun does so with --max-restarts. A script is run as
    `python SCRIPT` would run it, under the plan.
    """
    if command := script_command(target, arguments, module=module):
        refuse_of_a_script(
            resume=resume or resume_anyway,
            **{
                "checkpoint-every": checkpoint_every is not None,
                "checkpoint-overhead": checkpoint_overhead != 0.02,
                "keep": keep != 3,
            },
        )
        refuse_of_a_script(ray=ray, **{"on-nan": on_nan is not OnNan.STOP})
        refuse_of_a_script(out=out != DEFAULT_OUT, updates=updates is not None, ranks=ranks > 1)
        refuse_of_a_script(restarts=restarts > 0)
        run_script(command, plan)
        return
    check_ranks(ranks, restarts, checkpoint_every, ray=ray)
    become_ranks(ranks, restarts, ray=ray)
    resume = resume or resume_anyway or restarted()
    chosen = Plan.load(plan, catalogue()) if plan else Plan()
    start_under(chosen)
    job = load_job(target)
    silent = is_member() and os.environ["RANK"] != "0"
    pace = Pace(every=checkpoint_every, overhead_frac=checkpoint_overhead, keep=keep) if checkpoint_every != 0 else None
    origin = Origin(target=target, arguments=tuple(sys.argv[2:]))
    non_finite = NonFinitePolicy(policy=on_nan.value)
    with TrainingProgress(errors, silent=silent) as progress:
        options = RunOptions(resume=resume, anyway=resume_anyway, pace=pace, non_finite=non_finite, say=progress.say)
        result = train(job, chosen, out, max_updates=updates, on_report=progress.on_report, options=options, origin=origin)
    leave_group()
    status = 130 if result.stopped_by is signal.SIGINT else 0
    if not silent:
        say_result(result, out)
    if is_member():
        end_rank(status)
    if status:
        raise typer.Exit(status)


def become_ranks(ranks: int, restarts: int, *, ray: bool = False) -> None:
    """Start the ranks and exit as they do, where that is asked for; one that was started so stays with its launcher."""
    if ray and not is_member():
        raise typer.Exit(launch_on_ray(ranks, [sys.executable, *sys.orig_argv[1:]]))
    if (ranks > 1 and not is_member()) or (restarts and not was_launched()):
        raise typer.Exit(launch(ranks, [sys.executable, *sys.orig_argv[1:]], restarts=restarts, say=say_on_stderr))
    stay_with_launcher(ranks)


def check_ranks(ranks: int, restarts: int, checkpoint_every: int | None, *, ray: bool) -> None:
    """Refuse --restarts and --ray where they cannot work.

    Raises:
        HastenError: There would be no checkpoint to go on from, torchrun started this rank, or there is one rank alone.
    """
    if restarts and checkpoint_every == 0:
        raise HastenError("--restarts goes on from checkpoints, and --checkpoint-every 0 makes none: leave one out.")
    if restarts and is_member() and not was_launched():
        raise HastenError("--restarts is for ranks that Hasten starts; to torchrun say --max-restarts before the command.")
    if restarts and ray:
        raise HastenError("--restarts is for ranks on this machine. On Ray, give the same command again with --resume.")
    if ray and ranks == 1:
        raise HastenError("--ray starts ranks, and --ranks asks for one: say how many, --ranks 2 or more.")


def say_result(result: Result, out: Path) -> None:
    """Say what a run came to."""
    rate = result.samples / result.seconds if result.seconds else 0.0
    if result.went_on_from is not None:
        console.print(f"Went on from update {result.went_on_from}.", soft_wrap=True)
    console.print(f"Trained {result.updates} updates in {result.seconds:.1f} s ({rate:.0f} samples/s).", soft_wrap=True)
    console.print(f"Weights, metrics, checkpoints and plan are in {out}: hasten runs show {out}", soft_wrap=True)
    if result.stopped_by is not None:
        console.print(f"Stopped by {result.stopped_by.name}; the same command with --resume goes on.", soft_wrap=True)


def run_script(command: tuple[str, ...], path: Path | None) -> None:
    """Run a script under a plan, and exit as it exits; what of the plan did not take hold, or had to stop, goes to stderr.

    Where batches may have differed from those of the script alone, a script that ended well exits with `STALE`.
    """
    check_command(command)
    plan = Plan.load(path, catalogue()) if path else Plan()
    if missing := beyond(plan):
        words = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise PlanError(f"{path} holds what cannot act on a script: {words}. Take it out of the plan.")
    environment = joined_environment(required_environment(plan.optimizations), os.environ)
    done = run_under(command, plan.to_dict(), env=environment)
    for rank, why in done.failures.items():
        errors.print(
            f"hasten: rank {rank} ran without the plan, or not with all of it:\n{why}", markup=False, soft_wrap=True
        )
    for rank, told in done.ranks.items():
        for name in plan.names:
            if name not in told["applied"]:
                why = told["failures"].get(name, "the script gave it no place to act")
                how = "stopped" if name in told["stopped"] else "ran without"
                errors.print(f"hasten: rank {rank} {how} {name}: {why}", markup=False, soft_wrap=True)
        if told["stale"]:
            errors.print(
                f"hasten: rank {rank}: THIS RUN MAY NOT BE WHAT THE SCRIPT ALONE GIVES: {told['stale']}. "
                f"Train again without {' and '.join(told['stopped'])}.",
                markup=False,
                soft_wrap=True,
            )
    if plan.names and not done.ranks and not done.failures:
        errors.print(
            "hasten: the plan did not take hold: the script never loaded torch, or ended before its first optimizer step",
            soft_wrap=True,
        )
    exit_like(done.code or (STALE if any(told["stale"] for told in done.ranks.values()) else 0))
