"""`hasten runs`: the runs there are, one of them on a page, several side by side, and the room that old ones take."""

from __future__ import annotations

import sys
from pathlib import Path
from time import time
from typing import Annotated, Any

import typer

from hasten.cli.runs_tables import show_comparison, show_leftovers, show_list, show_run
from hasten.cli.say import console, print_json
from hasten.core.errors import HastenError, MachineError
from hasten.report.words import bytes_words
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.records.clean import Leftovers, find_leftovers, remove
from hasten.train.records.compare import compare_runs
from hasten.train.records.reports import count_incidents, export_reports, read_reports
from hasten.train.records.runs import open_all, open_run, summary

runs = typer.Typer(
    help="List runs, show and compare them, and remove what they no longer need.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArgument = Annotated[Path, typer.Argument(help="The run's folder: what --out was.")]
FolderArgument = Annotated[Path, typer.Argument(help="Runs at or below this folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HERE = Path()


@runs.command("list")
def list_(folder: FolderArgument = HERE, json: JsonOption = False) -> None:
    """List the runs below a folder, the last to give a sign of life first."""
    rows = [summary(run, now_s=time()) for run in open_all(folder)]
    if json:
        print_json(rows)
        return
    show_list(rows, folder)


@runs.command()
def show(run: RunArgument, json: JsonOption = False) -> None:
    """Show a run on one page: where it stands, what it was trained from, its losses, held-out results and checkpoints."""
    opened = open_run(run)
    reports = read_reports(run)
    page: dict[str, Any] = {
        **summary(opened, now_s=time()),
        "record": dict(opened.record),
        "plan": dict(opened.plan),
        "last": reports[-1] if reports else {},
        "phases": next((row["phases"] for row in reversed(reports) if row.get("phases")), {}),
        "held_out_by_epoch": [
            {key: row[key] for key in ("update", "epoch", "held_out")} for row in reports if row.get("held_out")
        ],
        "incidents": count_incidents(run),
        "checkpoints": CheckpointFolder(run).describe(),
    }
    if json:
        print_json(page)
        return
    show_run(page, reports)


@runs.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="The folders of two runs, or more.")], json: JsonOption = False
) -> None:
    """Compare runs: in what they differ, held-out results at the same updates, speed. Single runs prove nothing."""
    if len(runs) < 2:
        raise HastenError("runs compare needs the folders of two runs or more: `hasten runs list` names them.")
    found = compare_runs([open_run(run) for run in runs])
    if json:
        print_json(found)
        return
    show_comparison(found)


@runs.command()
def export(run: RunArgument, file: Annotated[Path, typer.Argument(help="FILE.parquet")]) -> None:
    """Write the reports of a run as Parquet: a row a report, a column for each metric."""
    count = export_reports(read_reports(open_run(run).path), file)
    console.print(f"{count:,} reports are in {file}.", soft_wrap=True)


@runs.command()
def clean(
    folder: FolderArgument,
    keep_best: Annotated[bool, typer.Option("--keep-best", help="Leave the best checkpoint of each run.")] = False,
    older_than: Annotated[
        float, typer.Option(min=0.0, metavar="DAYS", help="Only runs without a sign of life for so many days.")
    ] = 0.0,
    everything: Annotated[
        bool, typer.Option("--everything", help="Remove the runs whole: weights, metrics and records too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove checkpoints that are no longer needed. Shows what would go, and asks; a run at work is never touched.

    A run that did not finish keeps its newest checkpoint, to go on from. Weights, metrics and records stay.
    """
    found = find_leftovers(
        open_all(folder), now_s=time(), older_than_days=older_than, keep_best=keep_best, everything=everything
    )
    if not json:
        show_leftovers(found, folder)
    if not found or not _agreed(found, yes=yes, ask=not json):
        if json:
            print_json([_told(one, removed=False) for one in found])
        return
    rows = [_told(one, removed=_removed(one)) for one in found]
    if json:
        print_json(rows)
        return
    for row in rows:
        if not row["removed"]:
            console.print(f"{row['run']} was taken up meanwhile, and is left alone.", soft_wrap=True)
    freed = sum(row["num_bytes"] for row in rows if row["removed"])
    console.print(f"Removed {bytes_words(freed)}.")


def _agreed(found: list[Leftovers], *, yes: bool, ask: bool) -> bool:
    """Whether it may go."""
    if yes:
        return True
    if not ask:
        return False
    if not _has_terminal():
        console.print("Nothing was removed: give --yes to remove it.")
        return False
    num_bytes = sum(one.num_bytes for one in found)
    if typer.confirm(f"Remove {bytes_words(num_bytes)} of {len(found)} run{'' if len(found) == 1 else 's'}?"):
        return True
    console.print("Nothing was removed.")
    return False


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def _removed(leftovers: Leftovers) -> bool:
    try:
        return remove(leftovers)
    except OSError as error:
        raise MachineError(f"{error.filename or leftovers.run.path} cannot be removed: {error.strerror}.") from error


def _told(leftovers: Leftovers, *, removed: bool) -> dict[str, Any]:
    return {
        "run": str(leftovers.run.path),
        "state": leftovers.run.state,
        "paths": [str(path) for path in leftovers.paths],
        "num_bytes": leftovers.num_bytes,
        "stays": leftovers.stays,
        "removed": removed,
    }
