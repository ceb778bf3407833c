"""`hasten tune`: search for techniques that pay within a budget; write plan, evidence and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.say import RanksOption, console, narrated, parse_duration, refuse_of_a_script, script_command
from hasten.core.errors import HastenError
from hasten.report import print_summary
from hasten.tune.objective import Goal, Objective
from hasten.tune.request import TuneRequest
from hasten.tune.scripts.subject import script_subject
from hasten.tune.session import Session
from hasten.tune.subject import job_subject

DEFAULT_OUT = Path("hasten-out")
INTERRUPTED = 130
NOTHING_LEARNT = 1
"""A tuning that failed, or in which no technique could be tried."""


def tune(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script, after --.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    budget: Annotated[str, typer.Option(help="Time to spend: 90s, 5m, 1h.")] = "10m",
    out: Annotated[Path, typer.Option(help="Folder for hasten.toml, evidence.json and report.html.")] = DEFAULT_OUT,
    seed: Annotated[int | None, typer.Option(help="Seed of the experiment; the job's own unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Take up the evidence in --out where it ended.")] = False,
    objective: Annotated[Goal, typer.Option(help="What is wanted: time, memory or cost.")] = Goal.TIME,
    max_slowdown: Annotated[
        float | None, typer.Option(help="With memory: an update may take so many times as long; 1.5 unless given.")
    ] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="With cost: of this machine, in any currency.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Try this technique and no others; may be repeated.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Leave this technique out; may be repeated.")] = None,
    ranks: RanksOption = 1,
) -> None:
    """Try techniques one at a time in paired runs; keep what is proved to help and not to hurt."""
    if max_slowdown is not None and objective is not Goal.MEMORY:
        raise HastenError(f"--max-slowdown belongs to --objective memory, and the objective is {objective}.")
    command = script_command(target, arguments, module=module)
    if command:
        refuse_of_a_script(ranks=ranks > 1)
    bound = {} if max_slowdown is None else {"max_slowdown": max_slowdown}
    wanted = Objective(goal=objective, price_per_hour=price_per_hour, **bound)
    request = TuneRequest(
        target=target, out=out, budget_s=parse_duration(budget), seed=seed, resume=resume, objective=wanted, ranks=ranks,
        command=command, only=tuple(only or ()), without=tuple(without or ()),
    )  # fmt: skip
    run_session(request)


def run_session(request: TuneRequest) -> None:
    """Tune and show the summary; exit 130 when it was interrupted, and 1 when it failed or could try nothing."""
    subject = script_subject(request) if request.command else job_subject(request)
    with narrated() as say:
        evidence = Session(request, say, subject).run()
    print_summary(evidence, console, folder=request.out)
    if evidence.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if evidence.ended == "trial failures" or not any(item.tried and item.outcome != "failed" for item in evidence.rungs):
        raise typer.Exit(NOTHING_LEARNT)
