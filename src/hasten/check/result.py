"""What a check found, and how it is judged: pure functions of measured values.

A ratio above 1 means that the candidate is faster, as in every comparison of Hasten. For people it is said as the change of
the time of an update.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hasten.check.repository import Version
from hasten.core.job import Quality
from hasten.core.stats import ALPHA, TRAINING_LOSS, Interval, Verdict, judge, non_inferior, paired_interval
from hasten.report.words import bytes_words, ms_words
from hasten.tune.proof.compare import Comparison, held_out_verdict, interval_fields

SCHEMA = 1
STATUS = {Verdict.FASTER: 0, Verdict.SAME: 0, Verdict.SLOWER: 1, Verdict.UNDECIDED: 2}
"""Exit status of each verdict."""
MEMORY_FLOOR_FRAC = 0.05
"""Smallest change of the peak memory that is reported."""
LOSS_MARGIN_FRAC = 0.01
"""Smallest margin of a script's training loss, as a share of it. Wider if runs of the base differ by more."""
PHASE_SHARE = 0.5
"""A phase is named alone if it explains at least this share of the whole change."""
SIDE_BY_SIDE = "paired, interleaved processes of both versions"


@dataclass(frozen=True, kw_only=True)
class PhaseChange:
    """The time of each phase of an update before and after.

    Attributes:
        base_ms: Phase -> milliseconds of an update of the base.
        candidate_ms: The same of the candidate.
        named: The phase that explains most of the change; "" if none does.
    """

    base_ms: dict[str, float]
    candidate_ms: dict[str, float]
    named: str = ""

    @property
    def words(self) -> str:
        """The phase that changed, in words."""
        if not self.named:
            return "the change is spread over several phases"
        before, after = (ms_words(times.get(self.named, 0.0)) for times in (self.base_ms, self.candidate_ms))
        return f"most of the change is in {self.named}: {before} -> {after} an update"


@dataclass(frozen=True, kw_only=True)
class MemoryChange:
    """The peak memory before and after. `ratio` is the candidate's over the base's."""

    base_bytes: float
    candidate_bytes: float
    ratio: float
    verdict: Literal["more", "less", "same", "undecided"]

    @property
    def words(self) -> str:
        """The change in words."""
        sizes = f"{bytes_words(self.base_bytes)} -> {bytes_words(self.candidate_bytes)}"
        return f"{self.verdict} memory: {sizes}" if self.verdict in ("more", "less") else f"memory {self.verdict}: {sizes}"


@dataclass(frozen=True, kw_only=True)
class QualityChange:
    """The verdict on the held-out metric of a job, or on the training loss of a script."""

    metric: str
    verdict: Literal["not_worse", "worse", "undecided"]
    why: str

    @property
    def words(self) -> str:
        """The verdict in words."""
        return f"{self.metric} {self.verdict.replace('_', ' ')}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class AnchorResult:
    """The candidate against the fixed old commit of a history, which shows slow creep that each single step hides."""

    commit: str
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def words(self) -> str:
        """The comparison in words."""
        if self.ratio is None or self.low is None or self.high is None:
            return f"against the anchor {self.commit[:12]}: undecided"
        interval = Interval(self.ratio, self.low, self.high, 0, 0.0)
        creep = "; small slowdowns have added up" if self.verdict == Verdict.SLOWER else ""
        return f"against the anchor {self.commit[:12]}: {self.verdict}: {change_words(interval)}{creep}"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A finished check.

    Attributes:
        method: How it was measured, in words.
        interval: The interval of the ratio over all sessions; None if too little was measured.
        floor_frac: The smallest change that counts.
        sessions: The comparisons, the first one and its repetition in fresh worktrees.
        phases: The phases; None if they were not measured for both.
        memory: The peak memory; None if it was not measured.
        quality: The held-out metric or training loss; None if there is none.
        equal_losses: Whether the losses of both versions are bit-equal; None if unknown.
        warnings: What else a reader must know.
        machine: The machine: `fingerprint`, `summary`, `cpu`, `accelerators`.
        measured: What a history keeps of the candidate: `seconds_per_item`, `peak_bytes`, `environment`.
        anchor: The comparison with the history's anchor; None if there was none.
        seconds: Duration of the check.
    """

    target: str
    method: str
    verdict: Verdict
    why: str
    interval: Interval | None
    floor_frac: float
    base: Version
    candidate: Version
    sessions: tuple[Comparison, ...] = ()
    phases: PhaseChange | None = None
    memory: MemoryChange | None = None
    quality: QualityChange | None = None
    equal_losses: bool | None = None
    environment: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    anchor: AnchorResult | None = None
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """The exit status."""
        return STATUS[self.verdict]

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        change = f": {change_words(self.interval)}" if self.interval is not None else ""
        return f"{self.verdict}{change}; {self.why}"

    def rows(self) -> list[tuple[str, str]]:
        """Return everything but the verdict, as pairs of a kind and a sentence."""
        rows = []
        if self.phases is not None and self.verdict in (Verdict.FASTER, Verdict.SLOWER):
            rows.append(("phase", self.phases.words))
        if self.memory is not None:
            rows.append(("memory", self.memory.words))
        if self.equal_losses:
            rows.append(("losses", "the training losses are bit-equal"))
        elif self.quality is not None:
            rows.append(("quality", self.quality.words))
        rows += [("environment", words) for words in self.environment]
        if self.anchor is not None:
            rows.append(("anchor", self.anchor.words))
        return [*rows, *(("warning", words) for words in self.warnings)]

    def details(self) -> list[str]:
        """Return everything but the verdict, a line each."""
        first = f"{self.candidate.name} against {self.base.name}: {self.method}"
        named = ("environment", "warning")
        return [first, *(f"{kind}: {words}" if kind in named else words for kind, words in self.rows())]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "verdict": str(self.verdict),
            "why": self.why,
            "headline": self.headline,
            "status": self.status,
            "method": self.method,
            **interval_fields(self.interval),
            "floor": self.floor_frac,
            "base": vars(self.base),
            "candidate": vars(self.candidate),
            **{name: _told(getattr(self, name)) for name in ("phases", "memory", "quality", "anchor")},
            "equal_losses": self.equal_losses,
            "environment": list(self.environment),
            "warnings": list(self.warnings),
            "machine": dict(self.machine),
            "measured": dict(self.measured),
            "seconds": self.seconds,
            "sessions": [session.to_dict() for session in self.sessions],
        }


def _told(part: PhaseChange | MemoryChange | QualityChange | AnchorResult | None) -> dict[str, Any] | None:
    return None if part is None else {**vars(part), "words": part.words}


def change_words(interval: Interval) -> str:
    """Return how the time of an update changed, such as `updates take 7.3 % longer (5.9 % to 8.8 %)`."""
    best, low, high = (100.0 * (1.0 / ratio - 1.0) for ratio in (interval.ratio, interval.high, interval.low))
    if best >= 100.0:
        return f"updates take {1.0 + best / 100.0:.2f} times as long ({1.0 + low / 100.0:.2f} to {1.0 + high / 100.0:.2f})"
    if best >= 0.0:
        return f"updates take {best:.1f} % longer ({low:.1f} % to {high:.1f} %)"
    return f"updates take {-best:.1f} % less time ({-high:.1f} % to {-low:.1f} %)"


def conclude(sessions: Sequence[Comparison]) -> tuple[Verdict, str]:
    """Return the verdict of a check and its reason: a slower verdict of the first session must recur in a second one."""
    first = sessions[0]
    if first.verdict is not Verdict.SLOWER:
        return first.verdict, first.why
    if len(sessions) == 1 or sessions[1].interval is None:
        return Verdict.UNDECIDED, "slower in one session, and no time was left to confirm it. Give a longer --budget"
    again = sessions[1].verdict
    if again is Verdict.SLOWER:
        return Verdict.SLOWER, "confirmed with fresh processes in a second session"
    return Verdict.UNDECIDED, f"slower in the first session, but {again} in its repetition: it did not recur"


def joined(sessions: Sequence[Comparison]) -> Interval | None:
    """Return the interval over the pairs of all sessions."""
    base = [time for session in sessions for time in session.times("A")]
    candidate = [time for session in sessions for time in session.times("B")]
    return paired_interval(base, candidate, 1.0 - ALPHA) if len(base) > 1 else None


def changed_phase(base_ms: Mapping[str, float], candidate_ms: Mapping[str, float], verdict: Verdict) -> PhaseChange:
    """Return the phases, and the one that explains most of a change in the direction of the verdict."""
    sign = -1.0 if verdict is Verdict.FASTER else 1.0
    names = sorted({*base_ms, *candidate_ms})
    grown = {name: sign * (candidate_ms.get(name, 0.0) - base_ms.get(name, 0.0)) for name in names}
    most = max(names, key=lambda name: grown[name], default="")
    total = sum(max(value, 0.0) for value in grown.values())
    named = most if total > 0.0 and grown[most] >= PHASE_SHARE * total and verdict is not Verdict.SAME else ""
    return PhaseChange(base_ms=dict(base_ms), candidate_ms=dict(candidate_ms), named=named)


def memory_change(base: Sequence[float], candidate: Sequence[float]) -> MemoryChange | None:
    """Return how the peak memory of an update changed; None with fewer than two measurements of each."""
    pairs = [(old, new) for old, new in zip(base, candidate, strict=False) if old and new]
    if len(pairs) < 2:
        return None
    interval = paired_interval([new for _, new in pairs], [old for old, _ in pairs], 1.0 - ALPHA)
    words = {Verdict.FASTER: "more", Verdict.SLOWER: "less", Verdict.SAME: "same", Verdict.UNDECIDED: "undecided"}
    verdict: Any = words[judge(interval, MEMORY_FLOOR_FRAC)]
    return MemoryChange(
        base_bytes=statistics.median(old for old, _ in pairs),
        candidate_bytes=statistics.median(new for _, new in pairs),
        ratio=interval.ratio,
        verdict=verdict,
    )


def quality_change(sessions: Sequence[Comparison], quality: Quality | None, *, of_script: bool) -> QualityChange | None:
    """Return the verdict on the held-out metric of a job or on the training loss of a script; None if there is none."""
    metrics = {arm: [metric for session in sessions for metric in session.metrics[arm]] for arm in "AB"}
    if of_script:
        losses = {arm: [metric[TRAINING_LOSS] for metric in metrics[arm] if TRAINING_LOSS in metric] for arm in "AB"}
        if not losses["A"] or len(losses["A"]) != len(losses["B"]):
            return None
        spread = max(losses["A"]) - min(losses["A"])
        margin = max(spread, LOSS_MARGIN_FRAC * max(map(abs, losses["A"])), 1e-12)
        found = non_inferior(losses["A"], losses["B"], direction="min", margin=margin)
        return QualityChange(metric=TRAINING_LOSS, verdict=found.verdict, why=found.why)
    if quality is None or not metrics["A"]:
        return None
    if not all(quality.metric in metric for metric in (*metrics["A"], *metrics["B"])):
        why = f"the candidate's metric() does not return {quality.metric!r}, which the base's quality names"
        return QualityChange(metric=f"held-out {quality.metric}", verdict="undecided", why=why)
    found = held_out_verdict(replace(sessions[0], metrics=metrics), quality)
    return QualityChange(metric=f"held-out {quality.metric}", verdict=found.verdict, why=found.why)
