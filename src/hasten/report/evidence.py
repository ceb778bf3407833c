"""The evidence file: all that a tuning measured, tried and decided, as one JSON object (`evidence.json`).

Reports, checks and other tools read this file and nothing else. Its shape is drawn by the classes below, from
`EvidenceFile` upwards; `docs/evidence.md` tells it in words. The rules:

- A gain is a ratio of speeds: 2.0 is twice as fast, below 1 is slower. `low` and `high` are its confidence interval.
- `_bytes`, `_ms` and `_frac` are units; a share runs from 0 to 1. Times without a unit in their name are seconds.
- Arm A of a comparison is without the candidate, arm B with it.
- A key marked `NotRequired` may be missing, one typed `| None` may be null: both mean "not known". More keys may be present.
- JSON has no NaN and no infinity: `save` writes null in their place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from hasten.core.errors import HastenError
from hasten.core.files import write_atomically
from hasten.report.shape import mismatches

SCHEMA = 1
PHASES = (
    "data", "transfer", "forward", "backward", "sync", "optimizer", "logging", "validation", "checkpoint", "other",
)  # fmt: skip

Outcome = Literal["applied", "refused", "failed", "undecided", "pruned"]
Verdict = Literal["faster", "slower", "same", "undecided"]


class JobTable(TypedDict):
    """What was tuned; `batch_size`, `num_params` and more may stand beside the target."""

    target: str
    name: NotRequired[str]
    batch_size: NotRequired[int | None]
    num_params: NotRequired[int | None]


class BottleneckTable(TypedDict):
    """What holds the job back: its name, its share of an update, and a sentence for a person."""

    name: str
    share: float | None
    words: str


class Sample(TypedDict):
    """One run of one arm, with what else the machine did meanwhile."""

    arm: Literal["A", "B"]
    pair: int
    seconds_per_item: float
    seconds: NotRequired[float | None]
    items: NotRequired[float | None]
    cpu_seconds: NotRequired[float | None]
    foreign_cpu_frac: NotRequired[float | None]
    major_faults: NotRequired[float | None]
    minor_faults: NotRequired[float | None]
    spoilt: NotRequired[bool]
    seconds_to_target: NotRequired[float | None]
    reached: NotRequired[bool]
    curve: NotRequired[list[list[float | None]]]


class Comparison(TypedDict):
    """Two plans in paired runs; without an interval where neighbours spoilt too many of them."""

    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    verdict: Verdict
    samples: NotRequired[list[Sample]]
    floor: NotRequired[float | None]
    confidence: NotRequired[float | None]
    kind: NotRequired[Literal["screening", "confirmation", "time_to_target"] | None]
    metric: NotRequired[str | None]
    targets: NotRequired[list[float | None]]
    missed: NotRequired[int | None]


NumericsTable = TypedDict(  # `class` is no name a class body could hold
    "NumericsTable",
    {
        "class": Literal["exact", "rounding", "training"],
        "verdict": str,
        "why": str,
        "baseline_losses": NotRequired[list[float | None] | None],
        "candidate_losses": NotRequired[list[float | None] | None],
    },
)


class CheckRow(TypedDict):
    """One proof that a mechanism fired."""

    name: str
    passed: bool
    seen: str


class Rung(TypedDict):
    """One candidate of the ladder, with what became of it and why."""

    name: str
    settings: dict[str, Any]
    outcome: Outcome
    reason: str
    predicted_max_gain: float | None
    comparison: Comparison | None
    numerics: NumericsTable | None
    evidence: NotRequired[list[CheckRow] | None]
    setup_seconds: NotRequired[float | None]
    break_even_updates: NotRequired[float | None]
    update_time: NotRequired[Comparison | None]
    proof: NotRequired[Comparison | None]


class QualityTable(TypedDict):
    """The held-out metric, before and after."""

    metric: str
    baseline: float | None
    tuned: float | None
    margin: float | None
    verdict: str
    direction: NotRequired[Literal["min", "max"] | None]
    why: NotRequired[str | None]


class Final(Comparison):
    """The whole plan against the job as it was."""

    quality: QualityTable | None
    time_to_target: NotRequired[Comparison | None]


class MemoryTable(TypedDict):
    """Highest memory of the training process, and what it may use."""

    baseline_peak_bytes: float | None
    tuned_peak_bytes: float | None
    limit_bytes: float | None


class ObjectiveTable(TypedDict):
    """What was wanted (`time`, `memory`, `cost`), within which bounds; the cost of the whole run where a price is known."""

    goal: str
    max_slowdown: float | None
    price_per_hour: float | None
    baseline_cost: NotRequired[float | None]
    tuned_cost: NotRequired[float | None]


class StepMs(TypedDict):
    """Mean time of an update, in milliseconds."""

    baseline: float | None
    tuned: float | None


class NoiseTable(TypedDict):
    """The smallest gain that counts here, why, and how many spoilt samples were taken again."""

    floor_frac: float
    reason: str
    retaken: NotRequired[int | None]


class Losses(TypedDict):
    """Training loss of each update, in order."""

    baseline: list[float | None]
    tuned: list[float | None]


class PatchTable(TypedDict):
    """What of a plan was written into the source of a script (technique -> what was changed), and what was left, and why."""

    written: dict[str, str]
    left: dict[str, str]


class EvidenceFile(TypedDict):
    """The whole file."""

    schema: int
    job: JobTable
    machine: dict[str, Any]
    commit: str | None
    bottleneck: BottleneckTable | None
    phases: dict[str, float]
    ceilings: dict[str, float]
    rungs: list[Rung]
    final: Final | None
    memory: MemoryTable | None
    own_cost_frac: float | None
    seconds: float
    objective: NotRequired[ObjectiveTable | None]
    phases_after: NotRequired[dict[str, float] | None]
    step_ms: NotRequired[StepMs | None]
    plan_toml: NotRequired[str | None]
    commands: NotRequired[list[str]]
    noise: NotRequired[NoiseTable | None]
    losses: NotRequired[Losses | None]
    budget_seconds: NotRequired[float | None]
    finished: NotRequired[bool]
    ended: NotRequired[str]
    created: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    patch: NotRequired[PatchTable | None]


def validate(evidence: Mapping[str, Any]) -> list[str]:
    """What is wrong with an evidence dict, in words, each naming its key path; empty when all is well."""
    problems = list(mismatches(evidence, EvidenceFile))
    if not problems:
        problems = list(_contradictions(evidence))
    return problems


def save(evidence: Mapping[str, Any], path: Path) -> None:
    """Write the evidence file, whole or not at all; numbers that are not finite become null.

    Raises:
        HastenError: It holds something JSON cannot carry, or the folder cannot be written.
    """
    try:
        text = json.dumps(finite(evidence), indent=1, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise HastenError(
            f"The evidence cannot be written as JSON: {error}. Put only strings, numbers, lists and dicts in it."
        ) from error
    try:
        write_atomically(path, text + "\n")
    except OSError as error:
        raise HastenError(
            f"Cannot write the evidence to {path}: {error}. Choose a folder you can write, with --out."
        ) from error


def load(path: Path) -> dict[str, Any]:
    """Read an evidence file.

    Raises:
        HastenError: It is missing, no JSON, of another schema, or `validate` finds it wrong.
    """
    remedy = "Make it anew with `hasten tune TARGET --out DIR`."
    try:
        evidence = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HastenError(f"Cannot read the evidence {path}: {error}. {remedy}") from error
    except ValueError as error:
        raise HastenError(f"{path} is not valid JSON: {error}. {remedy}") from error
    if not isinstance(evidence, dict):
        raise HastenError(f"{path} holds {type(evidence).__name__}, not a JSON object. {remedy}")
    if evidence.get("schema") != SCHEMA:
        raise HastenError(f"{path}: `schema` is {evidence.get('schema')!r}; this Hasten reads schema {SCHEMA}. {remedy}")
    if problems := validate(evidence):
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise HastenError(f"{path} is not sound evidence: {'; '.join(problems[:5])}{more}. {remedy}")
    return evidence


def finite(value: Any) -> Any:
    """The same with null for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _contradictions(evidence: Mapping[str, Any]) -> Iterator[str]:
    """What no type can say: numbers that cannot be, claims without their proof."""
    if evidence["schema"] != SCHEMA:
        yield f"`schema` must be {SCHEMA}, not {evidence['schema']!r}"
    if not isinstance(evidence["machine"].get("summary"), str | Mapping):
        yield "`machine.summary` is missing"
    for key in ("phases", "phases_after"):
        yield from _shares(evidence.get(key) or {}, key)
    for name, gain in evidence["ceilings"].items():
        if gain < 1:
            yield f"`ceilings.{name}` must be at least 1, not {gain!r}"
    for position, rung in enumerate(evidence["rungs"]):
        yield from _unproved(rung, f"rungs[{position}]")
    yield from _interval(evidence["final"], "final")
    yield from _interval((evidence["final"] or {}).get("time_to_target"), "final.time_to_target")


def _shares(shares: Mapping[str, float], where: str) -> Iterator[str]:
    for name, share in shares.items():
        if name not in PHASES:
            yield f"`{where}.{name}` is no phase; the phases are {', '.join(PHASES)}"
        if not 0 <= share <= 1:
            yield f"`{where}.{name}` must be a share from 0 to 1, not {share!r}"
    if sum(shares.values()) > 1.02:
        yield f"`{where}` adds up to {sum(shares.values()):.2f}, more than the whole"


def _unproved(rung: Mapping[str, Any], where: str) -> Iterator[str]:
    if not rung["reason"].strip():
        yield f"`{where}.reason` is empty: every candidate says why it was {rung['outcome']}"
    if rung["outcome"] == "applied" and rung["comparison"] is None:
        yield f"`{where}.comparison` is null, yet the outcome is applied: a gain must be measured"
    yield from _interval(rung["comparison"], f"{where}.comparison")


def _interval(comparison: Mapping[str, Any] | None, where: str) -> Iterator[str]:
    if comparison is None:
        return
    low, ratio, high = comparison["low"], comparison["ratio"], comparison["high"]
    if low is None or ratio is None or high is None:
        if comparison["verdict"] != "undecided":
            yield f"`{where}` has no interval, yet its verdict is {comparison['verdict']!r}"
    elif not 0 < low <= ratio <= high:
        yield f"`{where}` needs 0 < low <= ratio <= high, not {low!r}, {ratio!r}, {high!r}"
