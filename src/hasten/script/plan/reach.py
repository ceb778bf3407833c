"""Which optimizations of a plan can act on an unmodified script, and what to do instead of the others."""

from __future__ import annotations

import shlex

from hasten.core.card import Card
from hasten.core.errors import MachineError
from hasten.core.optimization import Optimization, missing_environment
from hasten.core.plan import Plan
from hasten.core.system import started_with

_JOB = "write the training as a hasten.Job (README, four methods), and tune that"


def why_beyond(card: Card, *, source: str = "SOURCE", need: str = "") -> str:
    """Why an optimization cannot act on an unmodified script, and what to do instead; empty where it can.

    Args:
        card: Its card.
        source: The data that the script reads, as a shell takes it, where that is known.
        need: What they take on disk, in words that follow a command, where that was measured.
    """
    if card.in_scripts:
        return ""
    return f"not on an unmodified script: {card.script_advice.format(source=source, need=need)}; or {_JOB}"


def beyond(plan: Plan) -> dict[str, str]:
    """Those of a plan that cannot act on a script -> why."""
    return {item.card.name: why for item in plan.optimizations if (why := why_beyond(item.card))}


def reached(plan: Plan) -> list[Optimization]:
    """Those of a plan that can act on a script."""
    return [item for item in plan.optimizations if item.card.in_scripts]


def out_of_reach(plan: Plan) -> dict[str, str]:
    """Those of a plan that cannot act on a script that has begun -> why, and what would help."""
    found, started = beyond(plan), started_with()
    for item in plan.optimizations:
        try:
            missing = missing_environment(item.environment(), started)
        except MachineError as error:
            found[item.card.name] = str(error)
            continue
        if missing:
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in missing.items())
            found[item.card.name] = f"it works in a process that is started with it: {words} python ..."
    return found
