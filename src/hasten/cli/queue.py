"""`hasten pipeline queue`: many pipelines at once, fair between their owners, through Dagster's queue and PostgreSQL."""

from __future__ import annotations

import getpass
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hasten.cli.command import JsonOption, Verbs
from hasten.cli.say import console, give_json, loading_shown, narrated, say, say_error
from hasten.core.errors import MachineError
from hasten.report.words import seconds_words

if TYPE_CHECKING:
    from hasten.pipeline.queue import Entry

queue = Verbs(help="Run many pipelines, as many at once as fit the machine, fair between owners.")

HERE = Path("hasten-queue")
WHERE = "Folder of the queue."
FolderArgument = Annotated[Path, typer.Argument(metavar="[FOLDER]", help=WHERE, envvar="HASTEN_QUEUE")]
OWNER_WIDTH, TIMES_WIDTH = 14, 42
"""Columns of a terminal for the owner, and for what follows the pipeline."""
STYLES = {"ended": "green", "running": "cyan", "failed": "red", "removed": "dim", "stopping": "yellow"}


@queue.command()
def start(
    folder: FolderArgument = HERE,
    postgres: Annotated[str, typer.Option(metavar="URL", help="Use this PostgreSQL server instead of one in FOLDER.")] = "",
    at_once: Annotated[
        int, typer.Option(min=0, help="Pipelines that are started at once. Default: as many as fit, and two that wait.")
    ] = 0,
) -> None:
    """Start a queue, or continue one that was stopped or killed. It runs in the background."""
    module, folder = _module(), folder.resolve()
    with narrated() as tell:
        module.start(folder, url=postgres, at_once=at_once, tell=tell)
    say(f"The queue in {folder} is running.")


@queue.command()
def add(
    pipelines: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders with a pipeline.toml.")],
    owner: Annotated[str, typer.Option(metavar="NAME", help="Whose they are. Default: your login name.")] = "",
    folder: Annotated[Path, typer.Option("--queue", metavar="FOLDER", help=WHERE, envvar="HASTEN_QUEUE")] = HERE,
) -> None:
    """Queue pipelines: all of them, or none if one cannot run."""
    owner = owner or getpass.getuser()
    with loading_shown("the queue"):
        module = _module()
        added = module.add(folder.resolve(), pipelines, owner)
    say(f"Added {len(added)} pipeline{'s' if len(added) > 1 else ''} for {owner}.")
    if not module.is_running(folder.resolve()):
        say_error(f"nothing starts yet: hasten pipeline queue start {folder}")


@queue.command()
def status(folder: FolderArgument = HERE, json: JsonOption = None) -> None:
    """Show what waits, what runs and what has ended, with the times."""
    folder = folder.resolve()
    with loading_shown("the queue"):
        module = _module()
        entries, running = module.entries(folder), module.is_running(folder)
    if give_json(json, {"running": running, "runs": [asdict(entry) for entry in entries]}):
        return
    if entries:
        console.print(table_of(entries))
    for entry in entries:
        if entry.error:
            say_error(f"{Path(entry.pipeline).parent}: {entry.error}")
    states = [entry.state for entry in entries]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    say(f"{counted or 'Nothing was added yet'}. The queue is {'' if running else 'not '}running.")


@queue.command()
def stop(folder: FolderArgument = HERE) -> None:
    """Ask running trainings to save, and stop the queue. `start` continues it."""
    module, folder = _module(), folder.resolve()
    with narrated() as tell:
        module.stop(folder, tell=tell)
    say(f"The queue in {folder} is stopped. Continue with hasten pipeline queue start {folder}")


def _module() -> Any:
    from importlib.util import find_spec

    if find_spec("dagster") is None or find_spec("dagster_postgres") is None:
        raise MachineError("the queue needs Dagster's storage in PostgreSQL: pip install 'hasten[pipeline,queue]'.")
    from hasten.pipeline import queue as module

    return module


def table_of(entries: list[Entry]) -> Table:
    """Return a row for each run, of at most the console's width."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("owner", max_width=OWNER_WIDTH, no_wrap=True, overflow="ellipsis")
    for name in ("pipeline", "state", "waited", "ran"):
        table.add_column(name, no_wrap=True)
    now, width = time.time(), max(console.width - OWNER_WIDTH - TIMES_WIDTH, OWNER_WIDTH)
    for entry in entries:
        until = entry.began or entry.ended or now
        ran = seconds_words((entry.ended or now) - entry.began) if entry.began else ""
        table.add_row(
            Text(entry.owner), Text(_short(entry.pipeline, width)), Text(entry.state, STYLES.get(entry.state, "")),
            seconds_words(until - entry.added), ran,
        )  # fmt: skip
    return table


def _short(path: str, width: int) -> str:
    """Return the folder of a pipeline, from here if it is below; of a long one the end, which tells it from others."""
    folder = Path(path).parent
    words = str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)
    return words if len(words) <= width else f"…{words[1 - width :]}"
