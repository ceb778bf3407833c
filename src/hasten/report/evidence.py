"""The evidence file: everything that a tuning measured, tried and decided, as one JSON object (`evidence.json`).

Reports, checks and other tools read only this file. The dataclasses below are its schema, and `Evidence` is the whole file.
`docs/reference/evidence.md` describes it for users. The rules:

- A gain is a ratio of speeds: 2.0 means double the speed, below 1 is slower. `low` and `high` are its confidence interval.
- The suffixes `_bytes`, `_ms` and `_frac` are units; a share is from 0 to 1. Times without a suffix are in seconds.
- Arm A of a comparison is without the candidate, arm B with it.
- None means "not known". A field without a default is always in the file, as null if it is None; a field with a default
  is left out if it is None. Keys of the file that no field describes are kept in `more`.
- JSON has no NaN and no infinity: `save` writes null instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hasten.core.card import Numerics
from hasten.core.errors import HastenError
from hasten.core.files import write_atomically
from hasten.core.stats import Verdict
from hasten.report import schema
from hasten.report.schema import Table

SCHEMA = 1
PHASES = (
    "data", "transfer", "forward", "backward", "sync", "optimizer", "logging", "validation", "checkpoint", "other",
)  # fmt: skip

Outcome = Literal["applied", "refused", "failed", "undecided", "pruned"]
Method = Literal["screening", "confirmation", "time_to_target"]
"""How a comparison was run: resident processes that take turns, pairs of fresh processes, or pairs of whole runs."""


@dataclass(frozen=True, kw_only=True)
class JobInfo(Table):
    """The job that was tuned. Other facts about it are in `more`."""

    target: str
    name: str | None = None
    fingerprint: str | None = None
    batch_size: int | None = None
    num_params: int | None = None


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Table):
    """The bottleneck of the job: its name, its share of an update, and a sentence for users."""

    name: str
    share: float | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Sample(Table):
    """One run of one arm, and the other load of the machine during it.

    Attributes:
        spoilt: Whether other processes used too much of the machine. Such a sample does not count.
        curve: For a whole run: update, training seconds and held-out metric of each measurement.
    """

    arm: Literal["A", "B"]
    pair: int
    seconds_per_item: float
    seconds: float | None = None
    items: float | None = None
    updates: int | None = None
    cpu_seconds: float | None = None
    foreign_cpu_frac: float | None = None
    major_faults: float | None = None
    minor_faults: float | None = None
    spoilt: bool | None = None
    peak_bytes: float | None = None
    setup_seconds: float | None = None
    seconds_to_target: float | None = None
    reached: bool | None = None
    curve: tuple[tuple[float | None, ...], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOut(Table):
    """The verdict on whether whole runs of arm B end with a held-out metric that is not worse."""

    verdict: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Comparison(Table):
    """A comparison of two plans in paired runs. It has no interval if too few pairs were undisturbed.

    Attributes:
        retaken: Number of pairs that were repeated because a sample was disturbed.
        targets: The target of each pair, if whole runs are compared by time to target.
        missed: Number of runs of B that never reached the target.
    """

    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    verdict: Verdict
    why: str | None = None
    samples: tuple[Sample, ...] | None = None
    floor: float | None = None
    floor_reason: str | None = None
    confidence: float | None = None
    kind: Method | None = None
    retaken: int | None = None
    metric: str | None = None
    targets: tuple[float | None, ...] | None = None
    missed: int | None = None
    held_out: HeldOut | None = None


@dataclass(frozen=True, kw_only=True)
class QualityResult(Table):
    """The held-out metric before and after. `seeds` holds the metric of each pair, by arm."""

    metric: str
    baseline: float | None
    tuned: float | None
    margin: float | None
    verdict: str
    direction: Literal["min", "max"] | None = None
    why: str | None = None
    seeds: Mapping[str, tuple[float | None, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class Final(Comparison):
    """The comparison of the whole plan with the unchanged job."""

    quality: QualityResult | None
    time_to_target: Comparison | None = None


@dataclass(frozen=True, kw_only=True)
class NumericsResult(Table):
    """The result of the numerics gate for a candidate: the class it was judged by, the verdict, and the reason."""

    kind: Numerics = field(metadata={"key": "class"})
    verdict: str
    why: str
    baseline_losses: tuple[float | None, ...] | None = None
    candidate_losses: tuple[float | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Check(Table):
    """One check that a mechanism was active."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True, kw_only=True)
class Candidate(Table):
    """One technique with its settings, its measurements and its outcome.

    Attributes:
        reason: Why it has this outcome; never empty.
        predicted_max_gain: The largest possible gain, as a ratio; None if it is not applicable or has no ceiling.
        comparison: The paired measurement that decided; None if there was none.
        event: What it speeds up if not updates: `report`, `checkpoint` or `validation`. `comparison` is then by the time of
            an epoch.
        evidence: The checks that its mechanism was active.
        setup_seconds: One-time cost in seconds: compilation, filling caches.
        break_even_updates: Number of updates after which this cost is earned back; None if it never is.
        memory_ratio: Peak memory with it, divided by peak memory without it.
        update_time: The comparison by update time, if `comparison` is by time to target.
        proof: The final proof of a whole plan that removed it again.
        unused_samples: Samples that gave no interval, because too many were disturbed.
    """

    name: str
    settings: Mapping[str, Any]
    outcome: Outcome
    reason: str
    predicted_max_gain: float | None = field(default=None, metadata={"required": True})
    comparison: Comparison | None = field(default=None, metadata={"required": True})
    numerics: NumericsResult | None = field(default=None, metadata={"required": True})
    event: str | None = None
    evidence: tuple[Check, ...] | None = None
    setup_seconds: float | None = None
    break_even_updates: float | None = None
    memory_ratio: float | None = None
    update_time: Comparison | None = None
    proof: Final | Comparison | None = None
    unused_samples: tuple[Sample, ...] | None = None

    @property
    def tried(self) -> bool:
        """Whether it ran: it was measured, judged, or failed."""
        return self.outcome == "failed" or any((self.comparison, self.numerics, self.evidence, self.unused_samples))


@dataclass(frozen=True, kw_only=True)
class Memory(Table):
    """Peak memory of the training process before and after, and the limit."""

    baseline_peak_bytes: float | None
    tuned_peak_bytes: float | None
    limit_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Wanted(Table):
    """The objective (`time`, `memory`, `cost`) and its bounds. With a price, also the cost of the whole run."""

    goal: str
    max_slowdown: float | None
    price_per_hour: float | None
    baseline_cost: float | None = None
    tuned_cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepMs(Table):
    """Mean time of an update before and after, in milliseconds."""

    baseline: float | None
    tuned: float | None


@dataclass(frozen=True, kw_only=True)
class Noise(Table):
    """The smallest gain that can be detected on this machine, its basis, and the comparison of the job with itself.

    Attributes:
        retaken: Number of pairs of the proof that were repeated because a sample was disturbed.
        repeats: Whether two runs of the job gave bit-equal losses.
    """

    floor_frac: float
    reason: str
    retaken: int | None = None
    repeats: bool | None = None
    samples: tuple[Sample, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Losses(Table):
    """Training loss of each update before and after, in order."""

    baseline: tuple[float | None, ...]
    tuned: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Patch(Table):
    """The techniques that are in the patch of a script (name -> change), and those that are not (name -> reason).

    `folder` is where to apply it, relative to the folder where the script was tuned; empty for that folder.
    """

    written: Mapping[str, str]
    left: Mapping[str, str]
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence(Table):
    """The whole evidence file. `rungs` are the candidates, in the order of the search."""

    schema: int
    job: JobInfo
    machine: Mapping[str, Any]
    commit: str | None
    bottleneck: Bottleneck | None
    phases: Mapping[str, float]
    ceilings: Mapping[str, float]
    rungs: tuple[Candidate, ...]
    final: Final | None
    memory: Memory | None
    own_cost_frac: float | None
    seconds: float
    objective: Wanted | None = None
    phases_after: Mapping[str, float] | None = None
    step_ms: StepMs | None = None
    plan_toml: str | None = None
    commands: tuple[str, ...] | None = None
    noise: Noise | None = None
    losses: Losses | None = None
    budget_seconds: float | None = None
    finished: bool | None = None
    ended: str | None = None
    created: str | None = None
    versions: Mapping[str, str] | None = None
    patch: Patch | None = None
    failure: str | None = None

    @property
    def applied(self) -> tuple[Candidate, ...]:
        """The candidates in the plan."""
        return tuple(rung for rung in self.rungs if rung.outcome == "applied")

    @property
    def epoch_gain(self) -> tuple[float, float, float] | None:
        """Gain of an epoch with a lower and an upper bound, if every technique of the plan acts on work around the updates.

        Each technique is measured on top of those before it, so the gains multiply. The products of the interval's ends are
        wider than a joint interval. None if a technique of the plan acts on updates.
        """
        gains = [rung.comparison for rung in self.applied if rung.event and rung.comparison]
        if not gains or len(gains) < len(self.applied):
            return None
        ratio, low, high = (math.prod(getattr(gain, end) or math.nan for gain in gains) for end in ("ratio", "low", "high"))
        return (ratio, low, high) if math.isfinite(ratio + low + high) else None


def validate(data: Any) -> list[str]:
    """Return the mistakes in evidence read from JSON, each with its key path; empty if there are none."""
    return _checked(data)[1]


def parse(data: Any) -> Evidence:
    """Convert JSON data to evidence.

    Raises:
        HastenError: `validate` finds a mistake.
    """
    evidence, problems = _checked(data)
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise HastenError(f"This is not valid evidence: {'; '.join(problems[:5])}{more}.")
    return evidence


def load(path: Path) -> Evidence:
    """Read an evidence file.

    Raises:
        HastenError: The file is missing, not JSON or of another schema, or `validate` finds a mistake.
    """
    remedy = "Create a new file with `hasten tune TARGET --out DIR`."
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HastenError(f"Cannot read the evidence {path}: {error}. {remedy}") from error
    except ValueError as error:
        raise HastenError(f"{path} is not valid JSON: {error}. {remedy}") from error
    if not isinstance(data, dict):
        raise HastenError(f"{path} contains a {type(data).__name__}, not a JSON object. {remedy}")
    if data.get("schema") != SCHEMA:
        raise HastenError(f"{path}: `schema` is {data.get('schema')!r}; this Hasten reads schema {SCHEMA}. {remedy}")
    try:
        return parse(data)
    except HastenError as error:
        raise HastenError(f"{path}: {error} {remedy}") from error


def save(evidence: Evidence, path: Path) -> None:
    """Write the evidence file atomically. Numbers that are not finite become null.

    Raises:
        HastenError: A value cannot be represented in JSON, or the folder cannot be written.
    """
    write_json(evidence, path)


def write_json(data: Any, path: Path) -> None:
    """Write tables, dicts and lists as JSON, atomically. Numbers that are not finite become null.

    Raises:
        HastenError: A value cannot be represented in JSON, or the folder cannot be written.
    """
    try:
        text = json.dumps(schema.write(data), indent=1, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise HastenError(f"This cannot be written as JSON: {error}. Use only strings, numbers, lists and dicts.") from error
    try:
        write_atomically(path, text + "\n")
    except OSError as error:
        raise HastenError(f"Cannot write {path}: {error}. Choose a writable folder with --out.") from error


def _checked(data: Any) -> tuple[Evidence, list[str]]:
    evidence, problems = schema.read(Evidence, data, "evidence")
    return evidence, problems or list(_contradictions(evidence))


def _contradictions(evidence: Evidence) -> Iterator[str]:
    """Yield mistakes that types cannot express: impossible numbers, claims without proof."""
    if evidence.schema != SCHEMA:
        yield f"`schema` must be {SCHEMA}, not {evidence.schema!r}"
    if not isinstance(evidence.machine.get("summary"), str | Mapping):
        yield "`machine.summary` is missing"
    yield from _shares(evidence.phases, "phases")
    yield from _shares(evidence.phases_after or {}, "phases_after")
    for name, gain in evidence.ceilings.items():
        if gain < 1:
            yield f"`ceilings.{name}` must be at least 1, not {gain!r}"
    for position, rung in enumerate(evidence.rungs):
        yield from _unproved(rung, f"rungs[{position}]")
    if evidence.final is not None:
        yield from _interval(evidence.final, "final")
        yield from _interval(evidence.final.time_to_target, "final.time_to_target")


def _shares(shares: Mapping[str, float], where: str) -> Iterator[str]:
    for name, share in shares.items():
        if name not in PHASES:
            yield f"`{where}.{name}` is not a phase; the phases are {', '.join(PHASES)}"
        if not 0 <= share <= 1:
            yield f"`{where}.{name}` must be a share from 0 to 1, not {share!r}"
    if sum(shares.values()) > 1.02:
        yield f"`{where}` adds up to {sum(shares.values()):.2f}, more than the whole"


def _unproved(rung: Candidate, where: str) -> Iterator[str]:
    if not rung.reason.strip():
        yield f"`{where}.reason` is empty: every candidate needs a reason why it was {rung.outcome}"
    if rung.outcome == "applied" and rung.comparison is None:
        yield f"`{where}.comparison` is null, but the outcome is applied: a gain must be measured"
    yield from _interval(rung.comparison, f"{where}.comparison")


def _interval(comparison: Comparison | None, where: str) -> Iterator[str]:
    if comparison is None:
        return
    low, ratio, high = comparison.low, comparison.ratio, comparison.high
    if low is None or ratio is None or high is None:
        if comparison.verdict != "undecided":
            yield f"`{where}` has no interval, but its verdict is {str(comparison.verdict)!r}"
    elif not 0 < low <= ratio <= high:
        yield f"`{where}` needs 0 < low <= ratio <= high, not {low!r}, {ratio!r}, {high!r}"
