"""Tell a person what is going on: a spinner with the present step on a terminal, plain lines anywhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hasten.core.errors import HastenError
from hasten.report import schema
from hasten.report.evidence import write_json as write_whole_json

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

RanksOption = Annotated[
    int,
    typer.Option("--ranks", min=1, help="Processes that train together, each with a GPU or a share of the cores."),
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `5m` or `1h`.

    Raises:
        HastenError: It is none of these, or not positive.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise HastenError(f"--budget {text!r} is no duration: write 90s, 5m or 1h.")
    return float(found[1]) * _UNITS[found[2]]


def script_command(target: str, arguments: list[str] | None, *, module: bool) -> tuple[str, ...]:
    """The words after `python` where the target is a script or a module to run; empty where it is a job.

    Raises:
        HastenError: A job was given arguments.
    """
    if module or target.endswith(".py"):
        return ("-m", target, *(arguments or ())) if module else (target, *(arguments or ()))
    if arguments:
        raise HastenError(f"A job takes no arguments, and was given {' '.join(arguments)}. A script would: script.py -- ...")
    return ()


def refuse_of_a_script(**given: bool) -> None:
    """Refuse options that mean nothing for a script, rather than pass over them.

    Args:
        given: Name of an option, without its dashes -> whether it was given.

    Raises:
        HastenError: One was given; names them.
    """
    names = [f"--{name}" for name, was_given in given.items() if was_given]
    if names:
        raise HastenError(f"{', '.join(names)}: for a job only. A script says such things by its own arguments, after `--`.")


class Narrator:
    """Says each step once. Steps that begin with two spaces are details: shown on a terminal only, while they last."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None) if progress else None
        self._started = monotonic()

    def __call__(self, words: str) -> None:
        """Say something."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=escape(words.strip()[:100]))
        if words.startswith("  "):
            return
        target = self._progress.console if self._progress is not None else errors
        target.print(f"[dim]{monotonic() - self._started:5.0f} s[/dim]  {escape(words)}", soft_wrap=True)


@contextmanager
def narrated() -> Iterator[Narrator]:
    """A narrator on stderr for as long as the block lasts."""
    if not errors.is_terminal:
        yield Narrator(None)
        return
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as progress:
        yield Narrator(progress)


@contextmanager
def progress_on(words: str) -> Iterator[Callable[[str, float, float], None]]:
    """A progress bar on a terminal, nothing anywhere else; it is told words, how much is done, and of how much."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(escape(words), total=None)
        yield lambda said, done, total: progress.update(task, description=escape(said), completed=done, total=total)


@contextmanager
def progress_bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing anywhere else; it is told by how much it grows."""
    done = 0
    with progress_on(words) as update:

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            update(words, done, total)

        yield advance


def print_json(data: Any) -> None:
    """Print JSON, NaN and infinity as null."""
    typer.echo(json.dumps(schema.write(data), indent=2))


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write JSON so that NaN and infinity become null, and never half a file."""
    write_whole_json(data, path)
