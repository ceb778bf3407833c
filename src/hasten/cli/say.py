"""Print for a person: steps while something runs, results, and JSON.

On a terminal, the present step is drawn after a spinner and lines are wrapped at spaces. Elsewhere each step is one line of
any length. Text is printed as it is: markup and emoji codes, which paths and messages may contain, are not interpreted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from hasten.core.errors import HastenError

console = Console(highlight=False, markup=False, emoji=False)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)

STDOUT = Path("-")
"""The file name that means standard output."""
MIN_BUDGET_S = 10.0
"""Least time budget in seconds. A tuning or a search for a batch size needs more to compare anything."""

RanksOption = Annotated[
    int,
    typer.Option("--ranks", min=1, help="Number of processes that train together, each with a GPU or a share of the cores."),
]

LOADING_S = 1.0
"""Seconds after which `loading_shown` says what is being loaded."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Voice:
    """How much is printed.

    Attributes:
        level: -1 prints results and errors only, 0 also each step, 1 also the details of each step.
        traceback: Print errors with all frames.
        failed: Exit status on an error.
    """

    level: int = 0
    traceback: bool = False
    failed: int = 1


voice: ContextVar[Voice] = ContextVar("voice", default=Voice())  # noqa: B039 - a frozen value


def parse_duration(text: str, *, least_s: float = 0.0) -> float:
    """Return the seconds in `90s`, `5m` or `1h`.

    Args:
        text: The duration.
        least_s: The shortest that is accepted.

    Raises:
        HastenError: It has no unit, is not a duration, or is too short.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise HastenError(f"--budget {text!r} is not a duration: write 90s, 5m or 1h.")
    if not match[2]:
        raise HastenError(f"--budget {text} has no unit: write {text}s or {text}m.")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds < least_s:
        raise HastenError(f"--budget {text} is too short to compare anything: the minimum is {least_s:.0f}s.")
    return seconds


def script_command(target: str, arguments: list[str] | None, *, module: bool) -> tuple[str, ...]:
    """Return the words after `python` if the target is a script or a module to run; empty for a job.

    Raises:
        HastenError: A job was given arguments.
    """
    if module or target.endswith(".py"):
        return ("-m", target, *(arguments or ())) if module else (target, *(arguments or ()))
    if arguments:
        raise HastenError(
            f"{target} is a job, and jobs take no arguments ({' '.join(arguments)}). Scripts do: train.py -- ARGUMENTS."
        )
    return ()


def refuse_of_a_script(**given: bool) -> None:
    """Refuse options that apply only to jobs.

    Args:
        given: Name of an option, without its dashes -> whether it was given.

    Raises:
        HastenError: One was given; names them.
    """
    names = [f"--{name}" for name, was_given in given.items() if was_given]
    if names:
        raise HastenError(f"{', '.join(names)}: for a job only. A script takes its own arguments, after `--`.")


def say(words: str | Text, style: str = "", *, to: Console | None = None) -> None:
    """Print a line: wrapped at spaces on a terminal, whole elsewhere. Names that are not UTF-8 are printed with escapes."""
    to = to or console
    text = words if isinstance(words, Text) else Text(words, style)
    printable = text.plain.encode("utf-8", "backslashreplace").decode()
    to.print(text if printable == text.plain else Text(printable, style), soft_wrap=not to.is_terminal)


def say_error(words: str) -> None:
    """Print a line that begins with `hasten: ` to standard error."""
    say(f"hasten: {words}", to=errors)


@contextmanager
def loading_shown(target: str, *, is_shown: bool = True) -> Iterator[None]:
    """Say that a target is being loaded if the block takes longer than a second: imports and data may take many.

    The line looks like that of a step. Only errors and warnings begin with `hasten: `.

    Args:
        target: The job or script.
        is_shown: Whether this process may say so.
    """
    timer = Timer(LOADING_S, Narrator(None), (f"loading {target}",))
    timer.daemon = True
    if is_shown and voice.get().level >= 0:  # here, because the timer's thread does not inherit the voice
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Narrator:
    """Prints each step once. Steps that begin with two spaces are details, shown only while they last or with `-v`."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._started = monotonic()

    def __call__(self, words: str) -> None:
        """Print a step."""
        level = voice.get().level
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=words.strip())
        if level < 0 or (words.startswith("  ") and level < 1):
            return
        target = self._progress.console if self._progress is not None else errors
        say(Text.assemble((f"{monotonic() - self._started:5.0f} s  ", "dim"), words), to=target)


class _BudgetColumn(ProgressColumn):
    """Shows how much of the time budget is spent."""

    def render(self, task: Task) -> ProgressBar:
        """Draw the bar."""
        return ProgressBar(total=task.total, completed=min(task.elapsed or 0.0, task.total or 0.0), width=16)


@contextmanager
def narrated(budget_s: float | None = None) -> Iterator[Narrator]:
    """Narrate to standard error while the block runs.

    Args:
        budget_s: A time budget in seconds, shown as a bar.
    """
    if not errors.is_terminal or voice.get().level < 0:
        yield Narrator(None)
        return
    words = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    bar = () if budget_s is None else (_BudgetColumn(), TextColumn(f"of {duration_words(budget_s)}", markup=False))
    with Progress(
        SpinnerColumn(), TimeElapsedColumn(), *bar, words, console=errors, transient=True, expand=True
    ) as progress:
        progress.add_task("starting", total=budget_s)
        yield Narrator(progress)


def duration_words(seconds: float) -> str:
    """Return a duration as `--budget` takes it, such as `90s` or `5m`."""
    for unit, size in (("h", 3600.0), ("m", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


@contextmanager
def progress_on(words: str) -> Iterator[Callable[[str, float, float], None]]:
    """Show a progress bar on a terminal and nothing elsewhere; yields a function of words, amount done and total amount."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    hidden = not errors.is_terminal or voice.get().level < 0
    with Progress(*columns, console=errors, transient=True, disable=hidden) as progress:
        task = progress.add_task(words, total=None)
        yield lambda said, done, total: progress.update(task, description=said, completed=done, total=total)


@contextmanager
def progress_bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal and nothing elsewhere; yields a function that adds to the amount done."""
    done = 0
    with progress_on(words) as update:

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            update(words, done, total)

        yield advance


def give_json(file: Path | None, data: Any) -> bool:
    """Write JSON to `file`, `-` being standard output; NaN and infinity become null.

    Returns:
        Whether it went to standard output. Print only the JSON there.
    """
    from hasten.report import schema
    from hasten.report.evidence import write_json

    if file == STDOUT:
        typer.echo(json.dumps(schema.write(data), indent=2))
        return True
    if file is not None:
        write_json(data, file)
    return False


@contextmanager
def stdout_to_stderr(*, where: bool) -> Iterator[None]:
    """Send what processes started in the block print to standard error, so that standard output carries JSON alone.

    Args:
        where: Whether to do so.
    """
    if not where:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
