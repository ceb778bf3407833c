"""Determine which optimizations of a plan can act on an unmodified script, and what to do instead of the others."""

from __future__ import annotations

import shlex

from hasten.core.card import Card
from hasten.core.errors import MachineError
from hasten.core.optimization import Optimization, missing_environment
from hasten.core.plan import Plan
from hasten.core.system import started_with

_JOB = "write the training as a hasten.Job (see README) and tune the job"


def why_beyond(card: Card, *, source: str = "SOURCE", need: str = "") -> str:
    """Return why an optimization cannot act on an unmodified script, and what to do instead; "" if it can.

    Args:
        card: The optimization's card.
        source: The script's data source in shell syntax, if known.
        need: Required disk space, as text that follows a command, if it was measured.
    """
    if card.in_scripts:
        return ""
    return f"not on an unmodified script: {card.script_advice.format(source=source, need=need)}; or {_JOB}"


def beyond(plan: Plan) -> dict[str, str]:
    """Return the optimizations of a plan that cannot act on a script, each with the reason."""
    return {item.card.name: why for item in plan.optimizations if (why := why_beyond(item.card))}


def reached(plan: Plan) -> list[Optimization]:
    """Return the optimizations of a plan that can act on a script."""
    return [item for item in plan.optimizations if item.card.in_scripts]


def out_of_reach(plan: Plan) -> dict[str, str]:
    """Return the optimizations of a plan that cannot act on a running script, each with the reason and a remedy."""
    found, started = beyond(plan), started_with()
    for item in plan.optimizations:
        try:
            missing = missing_environment(item.environment(), started)
        except MachineError as error:
            found[item.card.name] = str(error)
            continue
        if missing:
            variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in missing.items())
            found[item.card.name] = f"it must be set before the process starts: {variables} python ..."
    return found
