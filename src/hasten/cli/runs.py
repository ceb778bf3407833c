"""`hasten runs`: list runs, show one, compare several, and remove old checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.command import JsonOption, Verbs, run_names
from hasten.cli.say import STDOUT, give_json, say
from hasten.core.errors import HastenError, MachineError
from hasten.report.words import bytes_words

if TYPE_CHECKING:
    from hasten.train.records.clean import Leftovers

runs = Verbs(help="List, show and compare runs, and remove what they no longer need.")

RunArgument = Annotated[Path, typer.Argument(help="Folder of the run, as given to --out.", autocompletion=run_names)]
FolderArgument = Annotated[Path, typer.Argument(help="Folder to search for runs, itself included.")]
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
def show(run: RunArgument, json: JsonOption = None) -> None:
    """Show a run on one page: state, settings, losses, held-out results and checkpoints."""
    from hasten.cli.runs_tables import show_run
    from hasten.train.checkpoints.folder import CheckpointFolder
    from hasten.train.records.reports import count_incidents, read_reports
    from hasten.train.records.runs import open_run, summary

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
    if give_json(json, page):
        return
    show_run(page, reports)


@runs.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two or more runs.", autocompletion=run_names)],
    json: JsonOption = None,
) -> None:
    """Compare runs: settings that differ, held-out results at equal updates, speed. Single runs prove nothing."""
    from hasten.cli.runs_tables import show_comparison
    from hasten.train.records.compare import compare_runs
    from hasten.train.records.runs import open_run

    if len(runs) < 2:
        raise HastenError("runs compare needs the folders of two or more runs: `hasten runs list` lists them.")
    found = compare_runs([open_run(run) for run in runs])
    if give_json(json, found):
        return
    show_comparison(found)


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
