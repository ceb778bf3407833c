"""Show the progress of a training: two lines that are redrawn on a terminal; elsewhere a line every 10 s and each epoch.

The terminal is drawn when a report arrives, at most once a second and without a thread, because drawing takes time from the
training. The time it takes is measured and limits how often it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from hasten.core.doing import doing_shown
from hasten.report.words import bytes_words, percent, seconds_words
from hasten.train.periodic import Report
from hasten.train.run import metrics_words

DRAW_S = 1.0
"""Least number of seconds between two drawings."""
DRAW_FRAC = 0.002
"""Share of the training time that drawing may take. A slow terminal is drawn less often."""
LINE_S = 10.0
"""Least number of seconds between two plain lines."""
LATELY_S = 60.0
"""Number of seconds over which the speed is measured."""
_SHOWN_FRAC = 0.02
"""Phases with a smaller share are not shown."""


class RecentSpeed:
    """The speed of a run over the last minute, validation and checkpoints included."""

    def __init__(self) -> None:
        self._seen: deque[Report] = deque()

    def add(self, report: Report) -> None:
        """Add a report, and drop those that are too old."""
        self._seen.append(report)
        while len(self._seen) > 2 and report.seconds - self._seen[1].seconds > LATELY_S:
            self._seen.popleft()

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at this speed; None if not known yet."""
        first, last = self._seen[0], self._seen[-1]
        if last.update <= first.update or last.seconds <= first.seconds:
            return None
        return (last.planned - last.update) * (last.seconds - first.seconds) / (last.update - first.update)

    @property
    def samples_per_s(self) -> float:
        """Samples per second; with one report, the speed that it states."""
        first, last = self._seen[0], self._seen[-1]
        if last.seconds <= first.seconds or last.samples < first.samples:  # rolled back to a checkpoint
            return last.samples_per_s
        return (last.samples - first.samples) / (last.seconds - first.seconds)


class TrainingProgress:
    """Shows reports and prints messages. A context manager.

    Args:
        console: Where to print.
        silent: Show no reports; messages are still printed.
        clock: Returns the time in seconds.
    """

    def __init__(self, console: Console, *, silent: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._console, self._silent, self._clock = console, silent, clock
        self._drawn: _TwoLines | None = None
        if console.is_terminal and not silent:
            self._drawn = _TwoLines(
                TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"), console=console, auto_refresh=False,
            )  # fmt: skip
            self._task = self._drawn.add_task("training", total=None, epoch=0, left="")
        self._doing = ExitStack()
        self._recent = RecentSpeed()
        self._newest: Report | None = None
        self._phases: dict[str, float] = {}
        self._last, self._draw_s = clock(), 0.0

    def on_report(self, report: Report) -> None:
        """Show a report: held-out results always, the rest when a drawing is due."""
        if self._silent:
            return
        self._recent.add(report)
        self._phases = report.phases or self._phases
        if report.held_out:
            self._print(f"epoch {report.epoch}: held-out {metrics_words(report.held_out)}")
        self._newest = report
        now, every = self._clock(), LINE_S if self._drawn is None else max(DRAW_S, self._draw_s / DRAW_FRAC)
        if now - self._last < every:
            return
        self._last = now
        if self._drawn is not None:
            self._draw(self._drawn, report)
            self._draw_s = self._clock() - now
        else:
            place = f"update {report.update:,} of {report.planned:,}, epoch {report.epoch}"
            self._print("  ".join(part for part in (place, self._status(report), self._left()) if part))

    def say(self, words: str) -> None:
        """Print a message above the drawing."""
        self._print(f"hasten: {words}")

    def __enter__(self) -> Self:
        if not self._silent:
            self._doing.enter_context(doing_shown(self.say))
        if self._drawn is not None:
            self._drawn.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._doing.close()
        if self._drawn is not None:
            if self._newest is not None:
                self._draw(self._drawn, self._newest)
            self._drawn.stop()

    def _draw(self, drawn: _TwoLines, report: Report) -> None:
        drawn.words = self._status(report)
        drawn.update(self._task, completed=report.update, total=report.planned, epoch=report.epoch, left=self._left())
        drawn.refresh()

    def _status(self, report: Report) -> str:
        return status_words(report, self._phases, self._recent.samples_per_s)

    def _left(self) -> str:
        left_s = self._recent.left_s
        return "" if left_s is None else f"{seconds_words(left_s)} left"

    def _print(self, words: str) -> None:
        self._console.print(words, markup=False, emoji=False, highlight=False, soft_wrap=not self._console.is_terminal)


class _TwoLines(Progress):
    """A bar, and a line of text below it."""

    words = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar and the text."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.words, style="dim", no_wrap=True, overflow="ellipsis")


def status_words(report: Report, phases: Mapping[str, float], samples_per_s: float) -> str:
    """Return loss, speed, memory and phases on one line.

    Args:
        report: The newest report.
        phases: Share of each phase in an update, from the newest report that has them.
        samples_per_s: Recent speed.
    """
    parts = [f"loss {report.loss:.4f}", f"{samples_per_s:,.0f} samples/s", bytes_words(report.memory_bytes)]
    if report.device_bytes is not None:
        parts.append(f"GPU {bytes_words(report.device_bytes)}")
    shares = sorted(phases.items(), key=lambda item: -item[1])
    parts += [f"{name} {percent(share)}" for name, share in shares if share >= _SHOWN_FRAC]
    return "  ".join(parts)
