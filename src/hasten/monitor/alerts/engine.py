"""Alerts with states: a rule that is broken is pending, then fires, and is resolved only after several good windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

from hasten.monitor.alerts.judge import EVENTS, FIRST, SHARE, STEP, WARM_UP, Finding, Judge, step_s, value_of
from hasten.monitor.alerts.rule import CONTRACT, Action, Rule, symptoms
from hasten.monitor.window import Window

State = Literal["pending", "firing", "resolved"]
_OTHERS = "system.cpu.others"
COMPUTES = ("forward", "backward", "optimizer")
UNSEEN = "No other process here explains it: longer batches may, or other tenants of a virtual machine"
"""Said if a phase that computes on the CPU takes longer and no symptom is seen: one core's clock may be as before."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A change of the state of a rule. On disk, a line of `alerts.jsonl`.

    Attributes:
        at: When the state changed, in seconds since 1970.
        step: Steps completed then.
        since_at: Begin of the first bad window, in seconds since 1970.
        since_step: Steps completed at that begin.
        value: The value judged.
        usual: The usual value; None if there is none.
        words: What is wrong.
        cause: The likely cause; empty if unknown.
        action: What the rule asks for while it fires.
    """

    rule: str
    state: State
    rank: int
    at: float
    step: int
    since_at: float
    since_step: int
    value: float
    usual: float | None = None
    words: str
    cause: str = ""
    next: str = ""
    action: Action = "warn"

    def to_dict(self) -> dict[str, Any]:
        """Return it as a line of the file."""
        return {"kind": "alert", **asdict(self), "value": float(f"{self.value:.6g}")}

    def text(self) -> str:
        """Return it as one paragraph, for a person."""
        where = f" (rank {self.rank})" if self.rank else ""
        if self.state == "resolved":
            return f"resolved at step {self.step:,}{where}: {self.words}"
        parts = [f"since step {self.since_step:,}{where}: {self.words}", self.cause, self.next]
        return " ".join(part if part.endswith((".", ":")) else f"{part}." for part in parts if part)


@dataclass
class _Standing:
    """How a rule stands."""

    judge: Judge
    bad: deque[bool]
    state: State = "resolved"
    good: int = 0
    since: Window | None = None
    words: str = ""


@dataclass
class _First:
    """Phases and metrics of the first windows, to explain later ones."""

    windows: list[Window] = field(default_factory=list)
    passed: int = 0

    def add(self, window: Window) -> None:
        if not window.steps:
            return
        self.passed += 1
        if WARM_UP < self.passed <= WARM_UP + FIRST:
            self.windows.append(window)

    def usual(self, metric: str) -> float | None:
        values = [value for window in self.windows if (value := value_of(metric, window)) is not None]
        return median(values) if values else None


class Alerts:
    """Judges the windows of a run, rank by rank.

    Args:
        rules: The rules.
        memory_words: Returns what has grown in memory; empty if unknown.
        proved: What the plan was proved to take: `step` and `phase.NAME`, in seconds per step. It explains a breach.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        memory_words: Callable[[], str] = lambda: "",
        proved: Mapping[str, float] | None = None,
    ) -> None:
        self._memory_words, self._proved = memory_words, dict(proved or {})
        self._rules = tuple(rules)
        self._symptoms = symptoms()
        self._ranks: dict[int, tuple[object, list[_Standing], _First]] = {}
        self._last: dict[int, Window] = {}

    def judge(self, window: Window) -> list[Alert]:
        """Return the changes of state that a window brings. Windows of a rank must come in order."""
        rank = window.start.rank
        start, standings, first = self._ranks.get(rank, (None, [], _First()))
        if start is not window.start:  # the first window of a part: a resumed run may differ from the earlier part
            standings = [_Standing(Judge(rule), deque(maxlen=rule.of)) for rule in self._rules]
            first = _First()
            self._ranks[rank] = (window.start, standings, first)
        others = {other: last for other, last in self._last.items() if other != rank}
        first.add(window)
        changes = [change for standing in standings if (change := self._step(standing, window, others, first)) is not None]
        self._last[rank] = window
        return changes

    def _step(self, standing: _Standing, window: Window, others: Mapping[int, Window], first: _First) -> Alert | None:
        finding = standing.judge(window, others)
        if finding is None:
            return None
        rule = standing.judge.rule
        standing.bad.append(finding.bad)
        standing.good = standing.good + 1 if finding.good else 0
        if finding.bad and (standing.since is None or not any(list(standing.bad)[:-1])) and standing.state == "resolved":
            standing.since = window
        if standing.state != "firing" and sum(standing.bad) >= rule.bad:
            standing.state = "firing"
        elif standing.state == "resolved" and finding.bad:
            standing.state = "pending"
        elif standing.state == "firing" and standing.good >= rule.good:
            standing.state = "resolved"
            standing.bad.clear()
        elif standing.state == "pending" and not any(standing.bad):
            standing.state = "resolved"  # it never fired, so no one needs to know
            return None
        else:
            return None
        return self._alert(standing, finding, window, first)

    def _alert(self, standing: _Standing, finding: Finding, window: Window, first: _First) -> Alert:
        rule, since = standing.judge.rule, standing.since or window
        fires = standing.state == "firing"
        standing.words = finding.words or standing.words
        return Alert(
            rule=rule.name,
            state=standing.state,
            rank=window.start.rank,
            at=window.at + window.seconds,
            step=window.to_step,
            since_at=since.at,
            since_step=since.from_step,
            value=finding.value,
            usual=finding.usual,
            words=standing.words or words_of(rule, finding, window),
            cause=self._cause(rule, window, first) if fires else "",
            next=rule.next if fires else "",
            action=rule.action,
        )

    def _cause(self, rule: Rule, window: Window, first: _First) -> str:
        """Name what has changed since the first windows, if the rule is about time."""
        if rule.kind == "grows":
            return self._memory_words()
        if rule.metric != STEP and not rule.metric.startswith(SHARE) and rule.kind != "slow_rank":
            return ""
        causes, computes = [], False
        proved = self._proved if rule.name == CONTRACT else {}

        def usual_of(metric: str) -> float | None:
            return proved.get(metric, first.usual(metric))

        now, before = step_s(window), usual_of(STEP)
        if now is not None and before is not None and now > before:
            grown = {
                name: spent / window.steps - (usual_of(f"phase.{name}") or 0.0)
                for name, spent in window.phases.items()
                if name not in EVENTS
            }
            name = max(grown, key=lambda phase: grown[phase], default="")
            if name and grown[name] > 0.3 * (now - before):
                causes.append(f"The phase `{name}` takes {seconds_text(grown[name])} more per step")
                computes = name in COMPUTES and _OTHERS in window.values and "gpu.utilization" not in window.values
        seen = []
        for symptom in self._symptoms:
            value, usual = value_of(symptom.metric, window), first.usual(symptom.metric)
            if value is not None and value - (usual or 0.0) > symptom.change:
                seen.append(symptom.says.format(value=value, usual=usual or 0.0))
        if computes and not seen:
            seen.append(UNSEEN)
        return ". ".join([*causes, *seen][:3])


def episodes(alerts: Sequence[Alert]) -> list[tuple[Alert, int | None]]:
    """Return each alert that fired, with the step at which it was resolved; None while it fires."""
    fired: list[tuple[Alert, int | None]] = []
    open_: dict[tuple[str, int], int] = {}
    for alert in alerts:
        if alert.state == "firing":
            open_[alert.rule, alert.rank] = len(fired)
            fired.append((alert, None))
        elif alert.state == "resolved" and (place := open_.pop((alert.rule, alert.rank), None)) is not None:
            fired[place] = (fired[place][0], alert.step)
    return fired


def words_of(rule: Rule, finding: Finding, window: Window) -> str:
    """Return what is wrong, from the rule's sentence."""
    says = rule.says or f"{rule.metric or rule.name} is {{value}}"
    unit = "s" if rule.metric == STEP or rule.kind in ("slow_rank", "idle") else window.unit(rule.metric)
    unit = "%" if rule.metric.startswith(SHARE) else unit
    numbers = {"value": finding.value, "usual": finding.usual or 0.0, "limit": finding.limit}
    quantities = {name: quantity(number, unit) for name, number in numbers.items()}
    return says.format(**quantities, change=f"{abs(finding.change):.0%}")


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit, for a person."""
    if unit == "%":
        return f"{value:.0%}"
    if unit == "s":
        return seconds_text(value)
    if unit in ("By", "By/s"):
        return f"{value / 2**20:,.0f} MiB{unit[2:]}"
    if unit == "1" or unit.startswith("{"):
        return f"{value:.4g}"
    return f"{value:.4g} {unit}"


def seconds_text(value: float) -> str:
    """Return seconds, or milliseconds below a tenth of a second."""
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.3g} ms"
