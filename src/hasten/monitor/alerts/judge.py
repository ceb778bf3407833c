"""Judge a window by a rule.

The usual value of a metric is the median over the run's own first windows, after two for the warm-up. A window is bad only
if its value leaves both the change that the rule allows and the spread of those first windows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hasten.monitor.alerts.rule import Rule
from hasten.monitor.window import Window

WARM_UP = 2
"""First windows that are not used: compilation, filling caches."""
FIRST = 8
"""Windows from which the usual value is taken."""
SPREADS = 4.0
"""Changes below this number of standard deviations of the first windows are noise."""
_LATE = 20
"""Windows from which the usual value of a spike is taken."""
_SPIKE_SPREADS = 8.0
_PATIENCE = 3.0
"""A pause is bad if it is this many times longer than all earlier ones, which may have been validations."""
_RANGE_OF_FIRST = 2.85  # expected range of 8 normal values, in standard deviations
_TO_SIGMA = 1.4826  # from the median absolute deviation
SHARE = "share."
STEP = "step"
WORKERS_DEAD = "loader.workers_dead"
"""`loader.workers` without `loader.workers_alive`."""

EVENTS = ("validation", "checkpoint", "rollback")
"""Phases between steps. They are not part of a step's time."""
OWN_PHASES = ("data", "transfer", "forward")
"""Phases in which a rank does not wait for other ranks."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule says of a window.

    Attributes:
        bad: Whether the rule is broken.
        good: Whether the window counts towards the end of an alert. Between bad and good, an alert stays as it is.
        value: The value judged.
        usual: The usual value; None if the rule has none.
        limit: The limit that was applied.
        words: What happened, if guards reported it.
    """

    bad: bool
    good: bool
    value: float
    usual: float | None = None
    limit: float = 0.0
    words: str = ""

    @property
    def change(self) -> float:
        """Relative change against the usual value; 0 without one."""
        return self.value / self.usual - 1.0 if self.usual else 0.0


def step_s(window: Window) -> float | None:
    """Return the seconds per step without the work between steps; None if no step ended, or if the run was rolled back."""
    if not window.steps or "rollback" in window.phases:
        return None
    return max(window.seconds - _between_steps_s(window), 0.0) / window.steps


def value_of(metric: str, window: Window) -> float | None:
    """Return the value of a rule's metric in a window; None if it has none."""
    if metric == STEP:
        return step_s(window)
    if metric.startswith(SHARE):
        steps = {name: seconds for name, seconds in window.phases.items() if name not in EVENTS}
        whole = sum(steps.values())
        return steps.get(metric.removeprefix(SHARE), 0.0) / whole if whole else None
    metrics = window.metrics()
    if metric == WORKERS_DEAD:
        workers, alive = metrics.get("loader.workers"), metrics.get("loader.workers_alive")
        return None if workers is None or alive is None else workers - alive
    return metrics.get(metric)


@dataclass
class Judge:
    """Judges the windows of one rank by one rule, in order.

    Attributes:
        passed: Number of values.
        pause_s: Seconds since the last step, if no step has ended since.
        longest_s: The longest earlier pause.
    """

    rule: Rule
    first: list[float] = field(default_factory=list)
    late: deque[float] = field(default_factory=lambda: deque(maxlen=_LATE))
    passed: int = 0
    pause_s: float = 0.0
    longest_s: float = 0.0

    def __call__(self, window: Window, others: Mapping[int, Window]) -> Finding | None:
        """Return what the rule says of a window; None if it cannot be judged (yet).

        `others` are the last windows of other ranks.
        """
        if self.rule.kind in ("idle", "incident", "not_finite", "slow_rank"):
            return self._of_window(window, others)
        value = value_of(self.rule.metric, window)
        if value is None or (
            self.rule.kind in ("above_start", "below_start") and not _tells_of_steps(self.rule.metric, window)
        ):
            return None
        self.passed += 1
        return None if self.rule.metric == STEP and self.passed <= WARM_UP else self._of_value(value, window)

    def _of_window(self, window: Window, others: Mapping[int, Window]) -> Finding | None:
        rule = self.rule
        if rule.kind == "idle":
            return self._idle(window)
        if rule.kind == "incident":
            return _of_incidents(rule, window)
        if rule.kind == "slow_rank":
            return _of_ranks(rule, window, others)
        given = window.values.get(rule.metric)
        return None if given is None else _either(bad=not math.isfinite(given), value=given)

    def _of_value(self, value: float, window: Window) -> Finding | None:
        rule = self.rule
        if rule.kind in ("above", "below"):
            bad = value > rule.limit if rule.kind == "above" else value < rule.limit
            return _either(bad=bad, value=value, usual=rule.usual or None, limit=rule.limit)
        if rule.kind == "counts":
            return self._counted(value, window)
        if rule.kind == "spike":
            return self._spike(value)
        return self._against_start(value)

    def _idle(self, window: Window) -> Finding:
        if window.steps or window.phases:  # after a rollback, a window may have no steps
            self.longest_s, self.pause_s = max(self.longest_s, self.pause_s), 0.0
            return _either(bad=False, value=0.0)
        self.pause_s += window.seconds
        return _either(bad=self.pause_s > _PATIENCE * self.longest_s, value=self.pause_s)

    def _counted(self, value: float, window: Window) -> Finding | None:
        before = self.late[-1] if self.late else value
        self.late.append(value)
        if self.passed <= WARM_UP + FIRST:
            return None
        return _either(bad=value > before and not _between_steps_s(window), value=value - before)

    def _spike(self, value: float) -> Finding | None:
        known = list(self.late)
        self.late.append(value)
        if len(known) < _LATE // 2:
            return None
        usual = median(known)
        spread = _TO_SIGMA * median(abs(one - usual) for one in known)
        limit = usual + max(self.rule.change * abs(usual), _SPIKE_SPREADS * spread)
        return _either(bad=value > limit, value=value, usual=usual, limit=limit)

    def _against_start(self, value: float) -> Finding | None:
        self.late.append(value)
        if self.passed <= WARM_UP:
            return None
        if len(self.first) < FIRST:
            self.first.append(value)
            return None
        usual, share = median(self.first), self.rule.metric.startswith(SHARE)
        least = self.rule.change if share else self.rule.change * abs(usual)
        allowed = max(least, SPREADS * spread_of(self.first))
        if self.rule.kind == "grows":
            value = min(list(self.late)[-self.rule.of :])
        beyond = usual - value if self.rule.kind == "below_start" else value - usual
        limit = usual - allowed if self.rule.kind == "below_start" else usual + allowed
        return Finding(bad=beyond > allowed, good=beyond < 0.7 * allowed, value=value, usual=usual, limit=limit)


def spread_of(values: Sequence[float]) -> float:
    """Return an estimate of the standard deviation that neither one outlier nor a lucky few can make too small."""
    middle = median(values)
    deviation = _TO_SIGMA * median(abs(value - middle) for value in values)
    return max(deviation, (max(values) - min(values)) / _RANGE_OF_FIRST)


def _either(*, bad: bool, value: float, usual: float | None = None, limit: float = 0.0) -> Finding:
    return Finding(bad=bad, good=not bad, value=value, usual=usual, limit=limit)


def _between_steps_s(window: Window) -> float:
    return sum(window.phases.get(name, 0.0) for name in EVENTS)


def _tells_of_steps(metric: str, window: Window) -> bool:
    """Whether a metric of a window is about steps, and not mainly about the work between them."""
    if metric == STEP or metric.startswith(SHARE):
        return True
    return window.steps > 0 and _between_steps_s(window) < 0.5 * window.seconds


def _of_incidents(rule: Rule, window: Window) -> Finding:
    words = [mark.words for mark in window.marks if mark.name == rule.metric]
    more = f" ({len(words)} times in this window)" if len(words) > 1 else ""
    return Finding(
        bad=bool(words), good=not words and window.steps > 0, value=len(words), words=words[0] + more if words else ""
    )


def _of_ranks(rule: Rule, window: Window, others: Mapping[int, Window]) -> Finding | None:
    mine = _own_work_s(window)
    rest = [work for other in others.values() if (work := _own_work_s(other)) is not None]
    if mine is None or not rest:
        return None
    usual = median(rest)
    limit = (1.0 + rule.change) * usual
    return _either(bad=mine > limit, value=mine, usual=usual, limit=limit)


def _own_work_s(window: Window) -> float | None:
    work = sum(window.phases.get(name, 0.0) for name in OWN_PHASES)
    return work / window.steps if window.steps and work else None
