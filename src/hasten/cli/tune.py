"""`hasten tune`: search for techniques that pay within a budget; write plan, evidence and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.command import technique_names
from hasten.cli.say import (
    MIN_BUDGET_S,
    RanksOption,
    console,
    loading_shown,
    narrated,
    parse_duration,
    refuse_of_a_script,
    say_error,
    script_command,
)
from hasten.core.errors import HastenError
from hasten.tune.objective import Goal, Objective

if TYPE_CHECKING:
    from hasten.tune.request import TuneRequest

DEFAULT_OUT = Path("hasten-out")
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
NOTHING_LEARNT = 1
"""Exit status of a tuning that failed, or in which no technique could be tried."""

AllOption = Annotated[bool, typer.Option("--all", help="List the techniques that do not apply, each with the reason.")]
BudgetOption = Annotated[str, typer.Option(help=f"Time to spend: 90s, 5m, 1h; at least {MIN_BUDGET_S:.0f}s.")]


def tune(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script, after --.")] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    budget: BudgetOption = "10m",
    out: Annotated[Path, typer.Option(help="Folder for hasten.toml, evidence.json and report.html.")] = DEFAULT_OUT,
    seed: Annotated[int | None, typer.Option(help="Seed of the experiment. Default: the job's own.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the tuning in --out instead of starting over.")] = False,
    objective: Annotated[Goal, typer.Option(help="What to improve: time, memory or cost.")] = Goal.TIME,
    max_slowdown: Annotated[
        float | None, typer.Option(help="With memory: how much slower an update may become, as a factor. Default: 1.5.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="With cost: price of this machine per hour, in any currency.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Try only this technique. May be repeated.", autocompletion=technique_names),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Do not try this technique. May be repeated.", autocompletion=technique_names),
    ] = None,
    ranks: RanksOption = 1,
    every: AllOption = False,
) -> None:
    """Try techniques one at a time in paired runs; keep those that are proved to help and to do no harm."""
    from hasten.tune.request import TuneRequest

    if max_slowdown is not None and objective is not Goal.MEMORY:
        raise HastenError(f"--max-slowdown applies to --objective memory, and the objective is {objective}.")
    command = script_command(target, arguments, module=module)
    if command:
        refuse_of_a_script(ranks=ranks > 1)
    bound = {} if max_slowdown is None else {"max_slowdown": max_slowdown}
    wanted = Objective(goal=objective, price_per_hour=price_per_hour, **bound)
    request = TuneRequest(
        target=target, out=out, budget_s=parse_duration(budget, least_s=MIN_BUDGET_S), seed=seed, resume=resume,
        objective=wanted, ranks=ranks, command=command, only=tuple(only or ()), without=tuple(without or ()),
    )  # fmt: skip
    run_session(request, every=every)


def run_session(request: TuneRequest, *, every: bool = False) -> None:
    """Tune and print the summary. Exits with 130 if interrupted, and with 1 if it failed or could try nothing.

    Args:
        request: What to tune.
        every: List the techniques that do not apply.
    """
    with loading_shown(request.target):
        from hasten.core.job import defaults_words
        from hasten.report import print_summary
        from hasten.report.words import nothing_learnt_words
        from hasten.tune.scripts.subject import script_subject
        from hasten.tune.session import Session
        from hasten.tune.subject import job_subject

        subject = script_subject(request) if request.command else job_subject(request)
    with narrated(request.budget_s) as say:
        if not request.command and (words := defaults_words(subject.job)):
            say(words)
        evidence = Session(request, say, subject).run()
    print_summary(evidence, console, folder=request.out, every=every)
    if evidence.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if evidence.ended == "trial failures":
        raise typer.Exit(NOTHING_LEARNT)
    if why := nothing_learnt_words(evidence.rungs):
        say_error(why)
        raise typer.Exit(NOTHING_LEARNT)
