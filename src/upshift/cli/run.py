"""`upshift run`: train a job under a plan."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from upshift.cli.say import RanksOption, ScratchOption, console, errors, refuse_of_a_script, script_command
from upshift.core.errors import PlanError
from upshift.core.optimization import joined_environment, required_environment
from upshift.core.plan import Plan
from upshift.core.scratch import allow_scratch
from upshift.core.target import load_job
from upshift.optimizations import catalogue
from upshift.script.entry.launch import exit_like, run_under
from upshift.script.plan.reach import beyond
from upshift.train.around import Report
from upshift.train.group import is_member, launch, leave_group, stay_with_launcher
from upshift.train.run import start_under, train
from upshift.tune.scripts.session import check_command

DEFAULT_OUT = Path("upshift-run")


def run(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script, after --.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    plan: Annotated[Path | None, typer.Option(help="The plan to train under; none trains the job as it is.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for metrics.jsonl and model.pt.")] = DEFAULT_OUT,
    updates: Annotated[int | None, typer.Option(help="Stop after so many updates.", min=1)] = None,
    scratch: ScratchOption = None,
    ranks: RanksOption = 1,
) -> None:
    """Train the job under a plan: progress, metrics, held-out results each epoch, weights at the end.

    With --ranks it starts itself so many times; under torchrun the ranks are those that torchrun started. A script is run as
    `python SCRIPT` would run it, under the plan.
    """
    if command := script_command(target, arguments, module=module):
        refuse_of_a_script(out=out != DEFAULT_OUT, updates=updates is not None, scratch=bool(scratch), ranks=ranks > 1)
        run_script(command, plan)
        return
    if ranks > 1 and not is_member():
        raise typer.Exit(launch(ranks, [sys.executable, *sys.orig_argv[1:]]))
    stay_with_launcher(ranks)
    allow_scratch(scratch or [])
    chosen = Plan.load(plan, catalogue()) if plan else Plan()
    start_under(chosen)
    job = load_job(target)
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    silent = is_member() and os.environ["RANK"] != "0"
    with Progress(*columns, console=errors, disable=silent or not errors.is_terminal) as progress:
        task = progress.add_task("training", total=None, epoch=0, words="")

        def on_report(report: Report) -> None:
            words = f"loss {report.loss:.4f}  {report.samples_per_s:.0f} samples/s"
            progress.update(task, completed=report.update, total=report.planned, epoch=report.epoch, words=words)
            if report.held_out:
                shown = "  ".join(f"{name} {value:.4f}" for name, value in report.held_out.items())
                progress.console.print(f"epoch {report.epoch}: held-out {shown}", markup=False)

        result = train(job, chosen, out, max_updates=updates, on_report=on_report)
    leave_group()
    if silent:
        return
    rate = result.samples / result.seconds if result.seconds else 0.0
    console.print(f"Trained {result.updates} updates in {result.seconds:.1f} s ({rate:.0f} samples/s).", soft_wrap=True)
    console.print(f"Weights, metrics and plan are in {out}.", soft_wrap=True)


def run_script(command: tuple[str, ...], path: Path | None) -> None:
    """Run a script under a plan, and exit as it exits; what of the plan did not take hold is told on stderr."""
    check_command(command)
    plan = Plan.load(path, catalogue()) if path else Plan()
    if missing := beyond(plan):
        words = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise PlanError(f"{path} holds what cannot act on a script: {words}. Take it out of the plan.")
    environment = joined_environment(required_environment(plan.optimizations), os.environ)
    done = run_under(command, plan.to_dict(), env=environment)
    for rank, why in done.failures.items():
        errors.print(f"upshift: rank {rank} ran without the plan:\n{why}", markup=False, soft_wrap=True)
    for rank, told in done.ranks.items():
        for name in plan.names:
            if name not in told["applied"]:
                why = told["failures"].get(name, "the script gave it no place to act")
                errors.print(f"upshift: rank {rank} ran without {name}: {why}", markup=False, soft_wrap=True)
    if plan.names and not done.ranks and not done.failures:
        errors.print(
            "upshift: the plan did not take hold: the script never loaded torch, or ended before its first optimizer step",
            soft_wrap=True,
        )
    exit_like(done.code)
