"""Compare the machine that a plan was proved on with this one."""

from __future__ import annotations

from hasten.core.machine import Machine
from hasten.core.plan import Plan


def changed_since_proof(plan: Plan, machine: Machine) -> str:
    """Return how this machine differs from the one that a plan was proved on.

    Returns:
        A phrase such as `2 cores, torch 2.12.0 then, and 16 cores, torch 2.13.0 now`. Empty if timings are comparable, or if
        the plan does not say where it was proved.
    """
    known = plan.proved.get("machine_fingerprint")
    if not plan.names or not known or known == machine.fingerprint():
        return ""
    then, now = _parts(str(plan.proved.get("machine", ""))), _parts(machine.summary())
    gone, new = ([part for part in one if part not in other] for one, other in ((then, now), (now, then)))
    if not gone and not new:
        return "the processor has other features now"
    return f"{', '.join(gone) or 'nothing else'} then, and {', '.join(new) or 'nothing else'} now"


def outdated_words(plan: Plan, machine: Machine, target: str) -> str:
    """Warn that a plan was proved on another machine, or with another version of torch; "" if it was not."""
    if changes := changed_since_proof(plan, machine):
        return f"this plan was proved elsewhere: {changes}. Its gain may not hold here. Tune again: hasten tune {target}"
    return ""


def _parts(summary: str) -> list[str]:
    """Return the parts of a summary that affect timings. The memory limit of a container does not."""
    return [part for part in summary.split(", ") if part and not part.endswith(" GiB")]
