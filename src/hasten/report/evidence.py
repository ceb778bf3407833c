"""The evidence file: everything that a tuning measured, tried and decided, as one JSON object (`evidence.json`).

Reports, checks and other tools read this file and nothing else. The dataclasses below are its schema, from `Evidence`
upwards; `docs/reference/evidence.md` describes it in words. The rules:

- A gain is a ratio of speeds: 2.0 is twice as fast, below 1 is slower. `low` and `high` are its confidence interval.
- `_bytes`, `_ms` and `_frac` are units; a share runs from 0 to 1. Times without a unit in their name are seconds.
- Arm A of a comparison is without the candidate, arm B with it.
- None means "not known". A field without a default is always in the file, null where it is None; a field with a default
  is left out where it is None. The file may hold more keys than these, which are kept in `more`.
- JSON has no NaN and no infinity: `save` writes null in their place.
"""

from __future__ import annotations

import json
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
"""How a comparison was run: resident processes taking turns, pairs of fresh processes, or pairs of whole runs."""


@dataclass(frozen=True, kw_only=True)
class JobInfo(Table):
    """What was tuned; other facts about the job are in `more`."""

    target: str
    name: str | None = None
    fingerprint: str | None = None
    batch_size: int | None = None
    num_params: int | None = None


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Table):
    """What limits the job: its name, its share of an update, and a sentence for a person."""

    name: str
    share: float | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Sample(Table):
    """One run of one arm, and what else the machine did meanwhile.

    Attributes:
        spoilt: Whether other processes used too much of the machine: the sample is not counted.
        curve: Of a whole run: update, training seconds and held-out metric of each measurement.
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
    """Whether whole runs of arm B end with a held-out metric that is no worse."""

    verdict: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Comparison(Table):
    """Two plans in paired runs; without an interval where too few pairs were clean.

    Attributes:
        retaken: Pairs that were run again because a sample was spoilt.
        targets: The target of each pair, where whole runs are compared by time to target.
        missed: Runs of B that never reached it.
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
    """The held-out metric, before and after; `seeds`: by arm, the metric of each pair."""

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
    """The whole plan against the job as it was."""

    quality: QualityResult | None
    time_to_target: Comparison | None = None


@dataclass(frozen=True, kw_only=True)
class NumericsResult(Table):
    """What the numerics gate said of a candidate: the class it was judged as, the verdict, and why."""

    kind: Numerics = field(metadata={"key": "class"})
    verdict: str
    why: str
    baseline_losses: tuple[float | None, ...] | None = None
    candidate_losses: tuple[float | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Check(Table):
    """One proof that a mechanism fired."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True, kw_only=True)
class Candidate(Table):
    """One technique with its settings, and everything that became of it.

    Attributes:
        reason: Why it has this outcome; never empty.
        predicted_max_gain: The most it could bring, as a ratio; None where it did not fit, or has no ceiling.
        comparison: The paired measurement that decided; None where there was none.
        evidence: The checks that its mechanism fired.
        setup_seconds: Seconds it costs once: compilation, filling caches.
        break_even_updates: After how many updates that is earned back; None where nothing is.
        memory_ratio: Peak memory with it over peak memory without.
        update_time: The comparison by update time, where `comparison` is by time to target.
        proof: The final proof of a whole plan that took it out again.
        unused_samples: Samples that gave no interval, because too many were spoilt.
        tried: Whether it ran at all: it was measured, judged, or failed.
    """

    name: str
    settings: Mapping[str, Any]
    outcome: Outcome
    reason: str
    predicted_max_gain: float | None = field(default=None, metadata={"required": True})
    comparison: Comparison | None = field(default=None, metadata={"required": True})
    numerics: NumericsResult | None = field(default=None, metadata={"required": True})
    evidence: tuple[Check, ...] | None = None
    setup_seconds: float | None = None
    break_even_updates: float | None = None
    memory_ratio: float | None = None
    update_time: Comparison | None = None
    proof: Final | Comparison | None = None
    unused_samples: tuple[Sample, ...] | None = None

    @property
    def tried(self) -> bool:  # noqa: D102 - among the attributes
        return self.outcome == "failed" or any((self.comparison, self.numerics, self.evidence, self.unused_samples))


@dataclass(frozen=True, kw_only=True)
class Memory(Table):
    """Peak memory of the training process, and the limit."""

    baseline_peak_bytes: float | None
    tuned_peak_bytes: float | None
    limit_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Wanted(Table):
    """What was wanted (`time`, `memory`, `cost`) and within which bounds; with a price, also the cost of the whole run."""

    goal: str
    max_slowdown: float | None
    price_per_hour: float | None
    baseline_cost: float | None = None
    tuned_cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepMs(Table):
    """Mean time of an update, in milliseconds."""

    baseline: float | None
    tuned: float | None


@dataclass(frozen=True, kw_only=True)
class Noise(Table):
    """The smallest gain that can be detected here, why, and the comparison of the job with itself behind it.

    Attributes:
        retaken: Pairs of the proof that were run again because a sample was spoilt.
        repeats: Whether two runs of the job gave bit-equal losses.
    """

    floor_frac: float
    reason: str
    retaken: int | None = None
    repeats: bool | None = None
    samples: tuple[Sample, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Losses(Table):
    """Training loss of each update, in order."""

    baseline: tuple[float | None, ...]
    tuned: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Patch(Table):
    """Which techniques were written into the source of a script (name -> change), and which were not (name -> why)."""

    written: Mapping[str, str]
    left: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Evidence(Table):
    """The whole file. `rungs` are the candidates, in the order of the search."""

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
        """The candidates that are in the plan."""
        return tuple(rung for rung in self.rungs if rung.outcome == "applied")


def validate(data: Any) -> list[str]:
    """What is wrong with evidence read from JSON, each mistake with its key path; empty where nothing is."""
    return _checked(data)[1]


def parse(data: Any) -> Evidence:
    """Evidence read from JSON.

    Raises:
        HastenError: `validate` finds something wrong.
    """
    evidence, problems = _checked(data)
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise HastenError(f"This is not sound evidence: {'; '.join(problems[:5])}{more}.")
    return evidence


def load(path: Path) -> Evidence:
    """Read an evidence file.

    Raises:
        HastenError: It is missing, not JSON, of another schema, or `validate` finds something wrong.
    """
    remedy = "Make it anew with `hasten tune TARGET --out DIR`."
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HastenError(f"Cannot read the evidence {path}: {error}. {remedy}") from error
    except ValueError as error:
        raise HastenError(f"{path} is not valid JSON: {error}. {remedy}") from error
    if not isinstance(data, dict):
        raise HastenError(f"{path} holds {type(data).__name__}, not a JSON object. {remedy}")
    if data.get("schema") != SCHEMA:
        raise HastenError(f"{path}: `schema` is {data.get('schema')!r}; this Hasten reads schema {SCHEMA}. {remedy}")
    try:
        return parse(data)
    except HastenError as error:
        raise HastenError(f"{path}: {error} {remedy}") from error


def save(evidence: Evidence, path: Path) -> None:
    """Write the evidence file, whole or not at all; numbers that are not finite become null.

    Raises:
        HastenError: It holds something JSON cannot carry, or the folder cannot be written.
    """
    write_json(evidence, path)


def write_json(data: Any, path: Path) -> None:
    """Write tables, dicts and lists as JSON, whole or not at all; numbers that are not finite become null.

    Raises:
        HastenError: They hold something JSON cannot carry, or the folder cannot be written.
    """
    try:
        text = json.dumps(schema.write(data), indent=1, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise HastenError(
            f"This cannot be written as JSON: {error}. Put only strings, numbers, lists and dicts in it."
        ) from error
    try:
        write_atomically(path, text + "\n")
    except OSError as error:
        raise HastenError(f"Cannot write {path}: {error}. Choose a folder you can write, with --out.") from error


def _checked(data: Any) -> tuple[Evidence, list[str]]:
    evidence, problems = schema.read(Evidence, data, "evidence")
    return evidence, problems or list(_contradictions(evidence))


def _contradictions(evidence: Evidence) -> Iterator[str]:
    """What no type can say: impossible numbers, claims without their proof."""
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
            yield f"`{where}.{name}` is no phase; the phases are {', '.join(PHASES)}"
        if not 0 <= share <= 1:
            yield f"`{where}.{name}` must be a share from 0 to 1, not {share!r}"
    if sum(shares.values()) > 1.02:
        yield f"`{where}` adds up to {sum(shares.values()):.2f}, more than the whole"


def _unproved(rung: Candidate, where: str) -> Iterator[str]:
    if not rung.reason.strip():
        yield f"`{where}.reason` is empty: every candidate says why it was {rung.outcome}"
    if rung.outcome == "applied" and rung.comparison is None:
        yield f"`{where}.comparison` is null, yet the outcome is applied: a gain must be measured"
    yield from _interval(rung.comparison, f"{where}.comparison")


def _interval(comparison: Comparison | None, where: str) -> Iterator[str]:
    if comparison is None:
        return
    low, ratio, high = comparison.low, comparison.ratio, comparison.high
    if low is None or ratio is None or high is None:
        if comparison.verdict != "undecided":
            yield f"`{where}` has no interval, yet its verdict is {str(comparison.verdict)!r}"
    elif not 0 < low <= ratio <= high:
        yield f"`{where}` needs 0 < low <= ratio <= high, not {low!r}, {ratio!r}, {high!r}"
