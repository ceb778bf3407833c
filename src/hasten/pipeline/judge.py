"""Judge a stage by its gates: what was not measured, or is NaN, does not pass. A person may override, with a reason.

Metrics are read from `metrics.json` in the stage's folder, or for a job from its newest held-out results:

    {"accuracy": {"teens": {"hits": 221, "items": 240}, "adults": {"hits": 840, "items": 900}},
     "perplexity": {"value": 3.1, "low": 3.0, "high": 3.2, "items": 500},
     "loss": 1.27}

Slices are optional. A number alone has no interval, so it passes only a gate with `exact = true`. The file that
`hasten.recipes.dialogue.evaluation.gating.evaluate` writes can be `metrics.json` too.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.core.errors import CorruptError
from hasten.core.gates import Estimate, Share
from hasten.pipeline.description import METRICS, Pipeline, PipelineError, Stage, StageGate

if TYPE_CHECKING:
    from hasten.data.private.audit import AuditLog

REPORTS, SEQUENTIAL = "metrics.jsonl", "sequential"
AUDIT, KEY = "audit.jsonl", "audit.key"
AUDIT_KEY = "HASTEN_AUDIT_KEY"
"""Environment variable that names the file with the key of the audit log. By default a key is kept beside the log."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a gate decided.

    Attributes:
        name: Name of the gate.
        passed: Whether what follows may start.
        words: One line for each slice.
        reason: Why a person overrode it; empty if no one did.
    """

    name: str
    passed: bool
    words: tuple[str, ...]
    reason: str = ""


def judge(pipeline: Pipeline, stage: Stage, out: Path) -> list[Judged]:
    """Judge a stage that has ended, by what is in its folder, with the overrides on record.

    Raises:
        CorruptError: The audit log was changed.
    """
    if not stage.gates:
        return []
    metrics = read_metrics(out)
    sequential = read_metrics(out / SEQUENTIAL) if stage.merge else {}
    judged = [decide(name, gate, metrics, sequential) for name, gate in stage.gates.items()]
    if all(one.passed for one in judged):
        return judged
    reasons = _overrides(pipeline)
    found = [(one, reasons.get((stage.name, one.name, _mark(stage.gates[one.name], out)), "")) for one in judged]
    return [replace(one, passed=True, reason=reason) if reason and not one.passed else one for one, reason in found]


def decide(name: str, wanted: StageGate, metrics: Mapping[str, Any], sequential: Mapping[str, Any]) -> Judged:
    """Decide one gate, from measurements and, for a gate with `within`, those of the sequential form."""
    decisions = [_decide_slice(wanted, part, metrics, sequential) for part in wanted.slices]
    words = tuple(f"{wanted.metric}, {text}" for _, text in decisions)
    return Judged(name=name, passed=all(passed for passed, _ in decisions), words=words)


def _decide_slice(
    wanted: StageGate, part: str, metrics: Mapping[str, Any], sequential: Mapping[str, Any]
) -> tuple[bool, str]:
    found, gate = _measured(metrics, wanted.metric, part), replace(wanted.gate, slices=(part,))
    items = found.get("items", 0) if isinstance(found, Mapping) else 0
    if wanted.min_samples and (not isinstance(items, int) or items < wanted.min_samples):
        return False, f"{part}: not passed, measured on {items} items; {wanted.min_samples} are needed"
    if wanted.within is not None:
        base = _value(_measured(sequential, wanted.metric, part))
        if base is None:
            return False, f"{part}: not passed, the sequential form was not measured"
        limit = base + wanted.within if gate.at_most else base - wanted.within
        gate = replace(gate, threshold=(min if gate.at_most else max)(gate.threshold, limit))
    decision = gate.decide({part: _result(found, exact=wanted.exact)})
    return decision.passed, decision.words[0].removeprefix(f"{wanted.metric}, ")


def read_metrics(out: Path) -> dict[str, Any]:
    """Return the metrics of a stage; empty if there are none that can be read."""
    try:
        found = json.loads((out / METRICS).read_text(encoding="utf-8"))
        if isinstance(found, dict) and isinstance(found.get("gates"), list):
            return {gate["metric"]: gate["slices"] for gate in found["gates"]}
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    try:
        lines = (out / REPORTS).read_text(encoding="utf-8").splitlines()
        held_out = [report["held_out"] for line in lines if (report := json.loads(line)).get("held_out")]
    except (OSError, ValueError):
        return {}
    return dict(held_out[-1]) if held_out else {}


def override(pipeline: Pipeline, stage: Stage, gate: str, out: Path, reason: str) -> None:
    """Record that a person lets a gate pass. It holds for these measurements and this gate alone.

    Raises:
        PipelineError: There is no such gate, or it passes, or the reason is empty.
        CorruptError: The audit log was changed.
    """
    if not reason.strip():
        raise PipelineError("an override needs a reason: --reason TEXT. It is kept in the audit log.")
    judged = {one.name: one for one in judge(pipeline, stage, out)}
    if gate not in judged:
        raise PipelineError(f"stages.{stage.name} has no gate {gate!r}. Its gates: {', '.join(judged) or 'none'}.")
    if judged[gate].passed:
        raise PipelineError(f"the gate {stage.name}.{gate} passes, so there is nothing to override. Leave --override out.")
    facts = {"stage": stage.name, "gate": gate, "mark": _mark(stage.gates[gate], out), "reason": reason.strip()}
    decision = "; ".join(judged[gate].words)[:2000]
    _log(pipeline).add(getpass.getuser(), "override", {**facts, "decision": decision})


def _overrides(pipeline: Pipeline) -> dict[tuple[str, str, str], str]:
    """Return the overrides on record: stage, gate and mark -> reason."""
    if not (pipeline.work / AUDIT).exists():
        return {}
    log = _log(pipeline)
    log.verify()
    entries = [json.loads(line) for line in log.path.read_text(encoding="utf-8").splitlines()]
    details = [entry["details"] for entry in entries if entry["action"] == "override"]
    return {(one["stage"], one["gate"], one["mark"]): one["reason"] for one in details}


def _log(pipeline: Pipeline) -> AuditLog:
    from hasten.data.private.audit import AuditLog  # noqa: PLC0415 - loads torch, and few gates are overridden

    own = pipeline.work / KEY
    path = Path(os.environ.get(AUDIT_KEY) or own)
    log = pipeline.work / AUDIT
    if path == own and not own.exists() and not log.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    try:
        key = path.read_bytes()
    except OSError as error:
        raise CorruptError(
            f"the key of the audit log, {path}, cannot be read: {error.strerror}. Restore it, or name it in {AUDIT_KEY}."
        ) from error
    return AuditLog(log, key)


def _mark(gate: StageGate, out: Path) -> str:
    """Return a hash of a gate and of what it judges."""
    text = json.dumps([repr(gate), read_metrics(out), read_metrics(out / SEQUENTIAL)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _measured(metrics: Mapping[str, Any], metric: str, name: str) -> Any:
    """Return the measurement of a slice. A metric without slices is that of `all`."""
    found = metrics.get(metric)
    if isinstance(found, Mapping) and not {"hits", "value"} & found.keys():
        return found.get(name)
    return found if name == "all" else None


def _result(found: Any, *, exact: bool) -> Share | Estimate | None:
    """Return a measurement for the gate; None if it is not one."""
    nan = math.nan
    if isinstance(found, Mapping) and isinstance(found.get("hits"), int) and isinstance(found.get("items"), int):
        return Share(found["hits"], found["items"])
    value = _value(found)
    if value is None:
        return None
    if isinstance(found, Mapping) and {"low", "high"} <= found.keys():
        low, high = (found[end] if isinstance(found[end], int | float) else nan for end in ("low", "high"))
        return Estimate(value, low, high)
    return Estimate(value, value, value) if exact else Estimate(value, nan, nan)


def _value(found: Any) -> float | None:
    """Return the number of a measurement; None if there is none."""
    if isinstance(found, Mapping):
        if isinstance(found.get("hits"), int) and isinstance(found.get("items"), int):
            return found["hits"] / found["items"] if found["items"] else None
        found = found.get("value")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found) else None
