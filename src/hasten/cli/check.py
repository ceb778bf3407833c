"""`hasten check`: has this change made training slower?"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from hasten.cli.command import JsonOption, Verb, Verbs
from hasten.cli.say import (
    MIN_BUDGET_S,
    RanksOption,
    console,
    errors,
    give_json,
    narrated,
    parse_duration,
    refuse_of_a_script,
    say,
    script_command,
    voice,
)
from hasten.core.errors import HastenError

if TYPE_CHECKING:
    from hasten.check.history import Trend
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
            if getattr(error, "exit_code", 0):  # a usage error of the command line, and not its help
                error.exit_code = FAILED  # type: ignore[attr-defined]
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
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with samples stored on this machine instead, which is weaker evidence."),
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
    record: Annotated[
        bool, typer.Option("--record", help="Add the result to the history in .hasten/history, or to the --baseline file.")
    ] = False,
    json: JsonOption = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a summary in Markdown.")] = None,
) -> None:
    """Compare the speed of the present code with an earlier commit: faster, same, slower or undecided.

    `hasten check TARGET` is short for `hasten check run TARGET`. Exits with 0 (faster, same), 1 (slower), 2 (undecided) or
    3 (it could not be measured). In GitHub Actions, it writes annotations and the job's summary too. `hasten check history`
    shows the trend over commits.
    """
    from hasten.check import ci
    from hasten.check.check import CheckRequest, run_check
    from hasten.check.paired import Options
    from hasten.check.subject import Subject
    from hasten.report.page import write_page

    command = script_command(target, arguments, module=module)
    if command:
        refuse_of_a_script(ranks=ranks > 1)
    seconds = parse_duration(budget, least_s=MIN_BUDGET_S)
    request = CheckRequest(
        subject=Subject(target=target, command=command, folder=Path.cwd(), ranks=ranks),
        against=against, baseline=baseline, record=record,
        options=Options(budget_s=seconds, floor_frac=floor, updates=updates, seed=seed, quality=quality),
    )  # fmt: skip
    with narrated(seconds) as step:
        result = run_check(request, step)
    if junit is not None:
        write_page(ci.junit(result), junit, "--junit")
    if markdown is not None:
        write_page(ci.markdown(result), markdown, "--markdown")
    file = Path(command[0] if command else target.rpartition(":")[0])
    for line in ci.report_to_github(result, file if file.suffix == ".py" else None, os.environ):
        typer.echo(line, err=True)
    if not give_json(json, result.to_dict()):
        show(result)
    raise typer.Exit(result.status)


def show(result: CheckResult) -> None:
    """Print a result, the verdict last."""
    for line in result.details():
        say(line)
    say(result.headline, STYLES[result.verdict])


@check.command("history", cls=CheckVerb)
def history(
    target: Annotated[str | None, typer.Argument(help="Show this job or script only.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="History file. Default: all files in .hasten/history of the repository.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the trend as an offline page.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as CSV for apache-otava; needs TARGET.")] = None,
    json: JsonOption = None,
) -> None:
    """Show how the speed changed over recorded commits, and the commits at which it changed for good."""
    from hasten.check.history import FOLDER, otava_csv, read, trends
    from hasten.check.repository import Repository
    from hasten.check.trend import render_trends
    from hasten.report.page import write_page

    files = [file] if file else sorted((Repository(Path.cwd()).root / FOLDER).glob("*.jsonl"))
    pages = [read(path) for path in files]
    problems = [problem for _, found in pages for problem in found]
    records = [record for found, _ in pages for record in found if target in (None, record.target)]
    if not records:
        where = file or FOLDER
        raise HastenError(
            f"{where} has no records{f' of {target}' if target else ''}. `hasten check TARGET --record` adds one."
        )
    found = trends(records)
    for problem in problems:
        say(problem, to=errors)
    if html is not None:
        write_page(render_trends(found, problems), html, "--html")
    if csv is not None:
        if len(found) > 1:
            names = ", ".join(f"{item.target} on {item.records[0].machine['summary']}" for item in found)
            raise HastenError(f"--csv takes one series, and there are {len(found)}: {names}. Name a TARGET and a --file.")
        write_page(otava_csv(found[0]), csv, "--csv")
    if not give_json(json, {"trends": [item.to_dict() for item in found], "problems": problems}):
        for item in found:
            show_trend(item)


def show_trend(trend: Trend) -> None:
    """Print a trend as a table, oldest first, and its changes last."""
    source = "paired with the first commit" if trend.paired else "unpaired: the machine's drift is included"
    say(f"\n{trend.target} on {trend.records[0].machine['summary']}", "bold")
    table = Table("commit", "time", "update time", "verdict", "", box=None)
    for index, (record, slowdown) in enumerate(zip(trend.records, trend.slowdown, strict=True)):
        words = f"{100 * trend.changes[index]:+.1f} % from here on" if index in trend.changes else ""
        table.add_row((record.commit or "-")[:12], record.when, f"{slowdown:.3f}x", record.verdict or "", words)
    console.print(table)
    say(f"Update time relative to the first commit; {source}.", "dim")
    if trend.creep:
        say(trend.creep, "bold red")
