"""Follow a run in windows: the training thread hands over its progress, a thread does the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter, time
from types import TracebackType
from typing import Any, Self

from hasten.monitor.metric import STEP_TIME
from hasten.monitor.sampler import Samplers
from hasten.monitor.sink import CLOSE_S, QueuedSink
from hasten.monitor.window import Mark, Start, Window

_SETTLE_S = 2.0
"""Seconds that the end of a run waits for the last window."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a window ends: after a step, once it has enough steps and seconds, or many seconds.

    Attributes:
        steps: Steps of a window.
        least_s: Seconds that a window has at least.
        most_s: Seconds after which a window ends with fewer steps. If no step ends for twice as long, a window without
            steps is written.
        cost_frac: Largest share of the time that reading samplers may take. Windows become longer if reading takes longer.
    """

    steps: int = 20
    least_s: float = 1.0
    most_s: float = 15.0
    cost_frac: float = 0.002


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is. A host makes one at the end of each window, on the training thread.

    Attributes:
        step: Completed steps.
        phases: Phase -> seconds since the start of the training.
        counts: Name of a rate -> its count since the start of the training: samples, tokens.
        values: Metric -> current value. Tensors are read by the monitor's thread, so that the training does not wait.
    """

    step: int
    phases: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Moment:
    """A progress with its time."""

    clock: float
    progress: Progress


class Monitor:
    """Follows a run. A context manager: on exit, it writes the last window and closes the sinks.

    The training thread calls `progress`. The monitor's thread reads the samplers once for each window, gives the window to
    the sinks and to `on_window`, and calls `at_end` after the last one.

    Attributes:
        windows: Number of windows so far.
    """

    def __init__(
        self,
        start: Start,
        progress: Callable[[], Progress],
        samplers: Samplers,
        sinks: Sequence[QueuedSink] = (),
        *,
        pace: Pace | None = None,
        say: Callable[[str], None] = print,
        on_window: Callable[[Window], None] = lambda _: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._start, self._progress, self._samplers, self._sinks = start, progress, samplers, sinks
        self._pace, self._say, self._on_window = pace or Pace(), say, on_window
        self._told, self._at_end = False, at_end
        self._steps, self._least_s = 0, self._pace.least_s
        self._marks: deque[Mark] = deque(maxlen=1000)
        self._moments: deque[_Moment] = deque(maxlen=64)
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="hasten-monitor", daemon=True)
        self._last = self._begun = _Moment(perf_counter(), Progress(step=start.step))
        self.windows = 0

    def after_step(self) -> None:
        """Count a step, and end the window if it is due. Call it on the training thread."""
        self._steps += 1
        now = perf_counter()
        seconds = now - self._begun.clock
        if seconds >= self._least_s and (self._steps >= self._pace.steps or seconds >= self._pace.most_s):
            self._end_window(now)

    def mark(self, name: str, *, words: str = "", seconds: float = 0.0) -> None:
        """Note an event that has just ended."""
        step = self._begun.progress.step + self._steps
        self._marks.append(Mark(name=name, step=step, at=round(time() - seconds, 3), seconds=round(seconds, 6), words=words))

    def __enter__(self) -> Self:
        self._last = self._begun = self._moment(perf_counter())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._steps or self._marks:
            self._end_window(perf_counter())
        self._ended.set()
        self._wake.set()
        self._thread.join(_SETTLE_S)
        self._samplers.close()
        for sink in self._sinks:
            sink.end()
        self._at_end()
        until = monotonic() + CLOSE_S
        for sink in self._sinks:
            sink.wait(until)

    def _end_window(self, now: float) -> None:
        self._begun, self._steps = self._moment(now), 0
        self._moments.append(self._begun)
        self._wake.set()

    def _moment(self, now: float) -> _Moment:
        try:
            return _Moment(now, self._progress())
        except Exception as error:  # noqa: BLE001 - nothing that fails here may end the training
            self._tell(error)
            return _Moment(now, self._begun.progress)

    def _follow(self) -> None:
        self._samplers.read()  # rates are counted from here
        self._limit_cost()
        while True:
            came = self._wake.wait(2 * self._pace.most_s)
            self._wake.clear()
            while self._moments:
                self._try_to_write(self._moments.popleft())
            if self._ended.is_set() and not self._moments:
                return
            if not came:
                self._try_to_write(replace(self._last, clock=perf_counter()))

    def _try_to_write(self, moment: _Moment) -> None:
        try:
            self._write(moment)
        except Exception as error:  # noqa: BLE001 - the next window is tried
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        told, self._told = self._told, True
        if not told:
            self._say(f"a window of metrics could not be made: {type(error).__name__}: {error}. The training goes on.")

    def _write(self, moment: _Moment) -> None:
        before, self._last = self._last, moment
        values = self._samplers.read()
        self._limit_cost()
        window = make_window(self._start, self.windows, before, moment, values=values, marks=self._take_marks())
        own = {
            "monitor.cpu": self._samplers.cpu_s / max(window.seconds, 1e-9),
            "monitor.dropped": float(sum(sink.dropped for sink in self._sinks)),
            "monitor.failures": float(self._samplers.failures),
        }
        window = replace(window, values={**window.values, **own})
        self.windows += 1
        for sink in self._sinks:
            sink.put(window)
        self._on_window(window)

    def _limit_cost(self) -> None:
        """Make windows long enough for the reading of samplers to take its share of the time only."""
        self._least_s = max(self._pace.least_s, self._samplers.cpu_s / self._pace.cost_frac)

    def _take_marks(self) -> tuple[Mark, ...]:
        return tuple(self._marks.popleft() for _ in range(len(self._marks)))


def make_window(
    start: Start, number: int, before: _Moment, now: _Moment, *, values: Mapping[str, float], marks: tuple[Mark, ...]
) -> Window:
    """Return the window between two moments, with the values of the samplers."""
    seconds = max(now.clock - before.clock, 1e-9)
    earlier, progress = before.progress, now.progress
    steps = max(progress.step - earlier.step, 0)  # a rollback goes to an earlier step
    phases = {name: total - earlier.phases.get(name, 0.0) for name, total in progress.phases.items()}
    rates = {name: (count - earlier.counts.get(name, 0.0)) / seconds for name, count in progress.counts.items()}
    given = {name: float(value) for name, value in progress.values.items()} if steps else {}
    per_step = {STEP_TIME.name: seconds / steps} if steps else {}
    return Window(
        start=start,
        number=number,
        from_step=progress.step - steps,
        to_step=progress.step,
        at=time() - (perf_counter() - before.clock),
        seconds=seconds,
        phases={name: max(spent, 0.0) for name, spent in phases.items() if spent > 1e-9},
        values={**values, **rates, **given, **per_step},
        marks=marks,
    )
