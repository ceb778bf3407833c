"""The gain contract: a run under a plan is held to what the plan was proved to do.

The terms are scalars of the plan's `[proved]`, written by `hasten tune`. A breach is an alert of the rule `contract`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasten.core.machine import Machine
from hasten.core.plan import Plan
from hasten.core.validity import changed_since_proof
from hasten.monitor.alerts.judge import STEP
from hasten.monitor.alerts.rule import CONTRACT, Action, Rule


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The contract of a run.

    Attributes:
        plan: The plan it trains under.
        job: The job's fingerprint; empty if unknown.
        action: What a breach asks for.
    """

    plan: Plan
    job: str = ""
    action: Action = "warn"


MARGIN = 0.05
"""A step may take this share longer than the upper end of the proved interval."""


def contract_rule(proved: Mapping[str, Any], action: Action) -> Rule | None:
    """Return the rule that holds a run to a plan's proof; None if the plan has no proved update time."""
    usual, high = proved.get("update_s"), proved.get("update_high_s")
    if not isinstance(usual, int | float) or not isinstance(high, int | float) or proved.get("state") != "proved":
        return None
    return Rule(
        name=CONTRACT,
        kind="above",
        metric=STEP,
        limit=high * (1.0 + MARGIN),
        usual=usual,
        says="a step takes {value}, and the plan was proved to take {usual} (at most {limit} with its interval and margin)",
        next="The gain is not there now: check what else uses the machine, or tune again",
        action=action,
    )


def proved_phases(proved: Mapping[str, Any]) -> dict[str, float]:
    """Return what an alert of the contract compares with: `step` and `phase.NAME`, in seconds per step."""
    phases = {
        f"phase.{name.removeprefix('phase_').removesuffix('_s')}": float(value)
        for name, value in proved.items()
        if name.startswith("phase_") and isinstance(value, int | float)
    }
    step = proved.get("update_s")
    return {**phases, STEP: float(step)} if isinstance(step, int | float) else phases


def why_void(contract: Contract, machine: Machine, samples: int | None) -> str:
    """Return why the contract does not hold for this run; empty if it does."""
    proved = contract.plan.proved
    if changes := changed_since_proof(contract.plan, machine):
        return f"the machine changed: {changes}"
    before = proved.get("job_fingerprint")
    if contract.job and before and before != contract.job:
        return "the job's code changed since the proof"
    counted = proved.get("samples")
    if samples is not None and counted is not None and counted != samples:
        return f"the dataset had {counted:,} samples then, and has {samples:,} now"
    return ""
