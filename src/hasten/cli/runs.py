"""`hasten runs`: list runs, show one, compare several, and remove old checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.command import OPTIONAL_FILE, JsonOption, Verbs, run_names
from hasten.cli.say import STDOUT, give_json, say
from hasten.core.errors import HastenError, MachineError
from hasten.report.words import bytes_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.report.runs import RunFacts
    from hasten.train.records.clean import Leftovers

runs = Verbs(help="List, show and compare runs, and remove what they no longer need.")

RunArgument = Annotated[Path, typer.Argument(help="Folder of the run, as given to --out.", autocompletion=run_names)]
FolderArgument = Annotated[Path, typer.Argument(help="Folder to search for runs, itself included.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar=OPTIONAL_FILE, help="Write one offline page to FILE; without FILE, NAME.html."),
]
PlotsOption = Annotated[
    Path | None,
    typer.Option("--plots", metavar="DIR", help="Write each plot of that page as SVG and PNG; needs Chromium or Chrome."),
]
HERE = Path()


@runs.command("list")
def list_(folder: FolderArgument = HERE, json: JsonOption = None) -> None:
    """List the runs below a folder, the most recently active first."""
    from hasten.cli.runs_tables import show_list
    from hasten.train.records.runs import open_all, summary

    rows = [summary(run, now_s=time()) for run in open_all(folder)]
    if give_json(json, rows):
        return
    show_list(rows, folder)


@runs.command()
def show(run: RunArgument, html: HtmlOption = None, plots: PlotsOption = None, json: JsonOption = None) -> None:
    """Show a run on one page: state, settings, losses, held-out results and checkpoints.

    With --html, write the page for a browser, with phases over time, memory, alerts and metrics of the machine.
    """
    from hasten.cli.runs_page import gather, open_any, page_of
    from hasten.cli.runs_tables import show_run
    from hasten.train.records.reports import read_reports

    opened = open_any(run)
    if html is not None or plots is not None:
        _write([gather(opened)], html, plots, None)
        if json is None:
            return
    reports = read_reports(run)
    page = page_of(opened, reports)
    if give_json(json, page):
        return
    show_run(page, reports)


@runs.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two or more runs.", autocompletion=run_names)],
    html: HtmlOption = None,
    plots: PlotsOption = None,
    json: JsonOption = None,
) -> None:
    """Compare runs: settings that differ, held-out results at equal updates, speed. Single runs prove nothing."""
    from hasten.cli.runs_page import gather, open_any
    from hasten.cli.runs_tables import short_names, show_comparison
    from hasten.train.records.compare import compare_runs

    if len(runs) < 2:
        raise HastenError("runs compare needs the folders of two or more runs: `hasten runs list` lists them.")
    opened = [open_any(run) for run in runs]
    found = compare_runs(opened)
    if html is not None or plots is not None:
        _write([gather(run, name) for run, name in zip(opened, short_names(found["runs"]), strict=True)], html, plots, found)
        if json is None:
            return
    if give_json(json, found):
        return
    show_comparison(found)


def _write(runs: Sequence[RunFacts], html: Path | None, plots: Path | None, comparison: Mapping[str, Any] | None) -> None:
    """Write the page and the plots that were asked for, and say where they are."""
    from hasten.report.images import save_plots
    from hasten.report.page import write_page
    from hasten.report.runs import render_runs

    page = render_runs(runs, comparison)
    if html is not None:
        name = runs[0].name if len(runs) == 1 else "runs"
        path = Path(f"{name}.html") if html == STDOUT else html
        write_page(page, path, "--html")
        say(f"Wrote {path}.")
    if plots is not None:
        say(f"Wrote {len(save_plots(page, plots))} images to {plots}.")


@runs.command()
def export(run: RunArgument, file: Annotated[Path, typer.Argument(help="FILE.parquet")]) -> None:
    """Write the reports of a run as Parquet: one row for each report, one column for each metric."""
    from hasten.train.records.reports import export_reports, read_reports
    from hasten.train.records.runs import open_run

    count = export_reports(read_reports(open_run(run).path), file)
    say(f"Wrote {count:,} reports to {file}.")


@runs.command()
def clean(
    folder: FolderArgument,
    keep_best: Annotated[bool, typer.Option("--keep-best", help="Keep the best checkpoint of each run.")] = False,
    older_than: Annotated[
        float, typer.Option(min=0.0, metavar="DAYS", help="Only runs that were inactive for this number of days.")
    ] = 0.0,
    everything: Annotated[
        bool, typer.Option("--everything", help="Remove whole runs, with weights, metrics and records.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    json: JsonOption = None,
) -> None:
    """Remove checkpoints that are no longer needed. Lists them and asks first. Running runs are never changed.

    A run that did not finish keeps its newest checkpoint, to resume from. Weights, metrics and records are kept.
    """
    from hasten.cli.runs_tables import show_leftovers
    from hasten.train.records.clean import find_leftovers
    from hasten.train.records.runs import open_all

    found = find_leftovers(
        open_all(folder), now_s=time(), older_than_days=older_than, keep_best=keep_best, everything=everything
    )
    prints = json != STDOUT
    if prints:
        show_leftovers(found, folder)
    if not found or not _agreed(found, yes=yes, ask=prints):
        give_json(json, [_row(one, removed=False) for one in found])
        return
    rows = [_row(one, removed=_removed(one)) for one in found]
    if give_json(json, rows):
        return
    for row in rows:
        if not row["removed"]:
            say(f"{row['run']} was resumed in the meantime and is left unchanged.")
    freed = sum(row["num_bytes"] for row in rows if row["removed"])
    say(f"Removed {bytes_words(freed)}.")


def _agreed(found: list[Leftovers], *, yes: bool, ask: bool) -> bool:
    """Return whether the user agrees to the removal."""
    if yes:
        return True
    if not ask:
        return False
    if not _has_terminal():
        say("Nothing was removed. Give --yes to remove it.")
        return False
    num_bytes = sum(one.num_bytes for one in found)
    if typer.confirm(f"Remove {bytes_words(num_bytes)} of {len(found)} run{'' if len(found) == 1 else 's'}?"):
        return True
    say("Nothing was removed.")
    return False


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def _removed(leftovers: Leftovers) -> bool:
    from hasten.train.records.clean import remove

    try:
        return remove(leftovers)
    except OSError as error:
        raise MachineError(f"{error.filename or leftovers.run.path} cannot be removed: {error.strerror}.") from error


def _row(leftovers: Leftovers, *, removed: bool) -> dict[str, Any]:
    return {
        "run": str(leftovers.run.path),
        "state": leftovers.run.state,
        "paths": [str(path) for path in leftovers.paths],
        "num_bytes": leftovers.num_bytes,
        "stays": leftovers.stays,
        "removed": removed,
    }
