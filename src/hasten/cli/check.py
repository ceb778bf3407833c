"""`hasten check`: has this change made training slower?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hasten.cli.command import JsonOption, Verb, Verbs
from hasten.cli.say import (
    MIN_BUDGET_S,
    RanksOption,
    give_json,
    narrated,
    parse_duration,
    refuse_of_a_script,
    say,
    script_command,
    voice,
)

if TYPE_CHECKING:
    from hasten.check.result import CheckResult

FAILED = 3
"""Exit status of an error: 1 and 2 are verdicts."""
STYLES = {"faster": "bold green", "same": "bold green", "slower": "bold red", "undecided": "bold yellow"}


class CheckVerb(Verb):
    """A verb of `check`, whose errors exit with 3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        voice.set(replace(voice.get(), failed=FAILED))
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "exit_code"):  # a usage error of the command line
                error.exit_code = FAILED
            raise


class CheckGroup(TyperGroup):
    """The verbs of `check`. The first may be left out: `hasten check TARGET`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the first verb if no verb is named."""
        return super().parse_args(ctx, args if args[:1] and args[0] in self.commands else ["run", *args])


check = Verbs(name="check", cls=CheckGroup, help="Compare the speed of two commits, with a verdict and an exit status.")


@check.command("run", cls=CheckVerb)
def run(
    target: Annotated[str, typer.Argument(help="package.module:Job, path/file.py:Job, or any training script.py")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script, after --.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Commit, tag or branch to compare with; of a branch, the merge base. Default: the main branch.",
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="The target is a module to run, as in python -m.")] = False,
    budget: Annotated[str, typer.Option(help=f"Time to spend: 90s, 5m, 1h; at least {MIN_BUDGET_S:.0f}s.")] = "10m",
    floor: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Smallest change that counts, as a share: 0.03 is 3 %.")
    ] = 0.03,
    updates: Annotated[
        int | None, typer.Option(min=1, help="Updates counted in each process. Default: as many as take a few seconds.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the experiment. Default: the job's own.")] = None,
    quality: Annotated[
        bool, typer.Option("--quality/--no-quality", help="Compare the held-out quality of jobs too.")
    ] = True,
    ranks: RanksOption = 1,
    json: JsonOption = None,
) -> None:
    """Compare the speed of the present code with an earlier commit: faster, same, slower or undecided.

    `hasten check TARGET` is short for `hasten check run TARGET`. Exits with 0 (faster, same), 1 (slower), 2 (undecided) or
    3 (it could not be measured). `hasten check history --help` shows the trend over commits.
    """
    from hasten.check.check import CheckRequest, run_check
    from hasten.check.paired import Options

    command = script_command(target, arguments, module=module)
    if command:
        refuse_of_a_script(ranks=ranks > 1)
    seconds = parse_duration(budget, least_s=MIN_BUDGET_S)
    request = CheckRequest(
        target=target, command=command, folder=Path.cwd(), ranks=ranks, against=against,
        options=Options(budget_s=seconds, floor_frac=floor, updates=updates, seed=seed, quality=quality),
    )  # fmt: skip
    with narrated(seconds) as step:
        result = run_check(request, step)
    if not give_json(json, result.to_dict()):
        show(result)
    raise typer.Exit(result.status)


def show(result: CheckResult) -> None:
    """Print a result, the verdict last."""
    for line in result.details():
        say(line)
    say(result.headline, STYLES[result.verdict])
