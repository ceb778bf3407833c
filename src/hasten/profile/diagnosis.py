"""Say in words what holds a job back: pure rules over measured phases and ceilings.

Thresholds as shares of the wall time. Input, transfer, optimizer and communication count from 10 %, logging, validation
and checkpoints from 5 %, padding from 20 % of the step; above 10 % that no phase explains, the answer is "other". Sources:
TraceML and Kineto use 5 to 20 % for input; the others are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hasten.core.card import Bottleneck

THRESHOLDS: Mapping[Bottleneck, float] = {
    Bottleneck.INPUT: 0.10,
    Bottleneck.TRANSFER: 0.10,
    Bottleneck.PADDING: 0.20,
    Bottleneck.OPTIMIZER: 0.10,
    Bottleneck.COMMUNICATION: 0.10,
    Bottleneck.LOGGING: 0.05,
    Bottleneck.VALIDATION: 0.05,
    Bottleneck.CHECKPOINT: 0.05,
    Bottleneck.OTHER: 0.10,
}

STRAGGLER = 1.1
"""From here on the slowest rank, and not the exchange, is what the others wait for."""

_WORDS: Mapping[Bottleneck, str] = {
    Bottleneck.INPUT: "Training waits for data: {share:.0%} of the time goes into reading and preparing batches.",
    Bottleneck.TRANSFER: "Moving batches to the device takes {share:.0%} of the time.",
    Bottleneck.PADDING: "Padding: {share:.0%} of the time is spent computing positions that hold no data.",
    Bottleneck.OPTIMIZER: "The optimizer step takes {share:.0%} of the time.",
    Bottleneck.COMMUNICATION: "The ranks exchange gradients, and wait for one another, {share:.0%} of the time.",
    Bottleneck.LOGGING: "Reading metrics at every update costs {share:.0%} of the time: the host waits for the device.",
    Bottleneck.VALIDATION: "Validation takes {share:.0%} of the time.",
    Bottleneck.CHECKPOINT: "Saving checkpoints takes {share:.0%} of the time.",
    Bottleneck.OTHER: "No measured phase explains {share:.0%} of the time.",
    Bottleneck.COMPUTE: "The model itself: {share:.0%} of the time is forward and backward arithmetic on real data.",
    Bottleneck.MEMORY: "Memory is nearly full.",
}

_WRITTEN = "Printing, logging and reporting metrics take {share:.0%} of the time."
"""Of logging that writes, and does not wait for values to be read."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What holds the job back.

    Attributes:
        name: The bottleneck.
        share: Its share of the wall time, 0 to 1.
        words: One or more sentences.
    """

    name: Bottleneck
    share: float
    words: str


def diagnose(
    phases: Mapping[str, float],
    ceilings: Mapping[str, float],
    *,
    wait_frac: float = 0.0,
    straggler: float = 1.0,
    logging_writes: bool = False,
) -> Diagnosis:
    """Name the bottleneck.

    Args:
        phases: Phase name -> share of wall time.
        ceilings: Counterfactual -> measured largest gain as a ratio.
        wait_frac: Share of the input time in which the process waited (storage, network, sleep) instead of computing.
        straggler: The slowest rank's time of computing over the mean of all ranks.
        logging_writes: Most of the logging is what is written somewhere, not the reading of values it writes.
    """
    shares = recoverable(phases, ceilings)
    over = {name: share for name, share in shares.items() if share >= THRESHOLDS.get(name, 0.0)}
    name = max(over, key=lambda item: over[item], default=Bottleneck.COMPUTE)
    texts = {**_WORDS, Bottleneck.LOGGING: _WRITTEN} if logging_writes else _WORDS
    words = [texts[name].format(share=shares[name])]
    if name is Bottleneck.INPUT:
        words.append(
            "While fetching, the process mostly waits (storage, network or sleep), so fetching ahead can hide it."
            if wait_frac > 0.5
            else "Fetching keeps a core busy, so doing less of it, or doing it once, helps more than doing it elsewhere."
        )
    if name is Bottleneck.COMMUNICATION and straggler >= STRAGGLER:
        words.append(f"The slowest rank computes {straggler:.2f} times as long as the mean: the others mostly wait for it.")
    rest = [item for item in over if item not in (name, Bottleneck.COMPUTE)]
    words += ["Besides: " + texts[item].format(share=shares[item]) for item in sorted(rest, key=lambda item: -shares[item])]
    if name is not Bottleneck.COMPUTE:
        words.append(f"The model's own arithmetic on real data takes {shares[Bottleneck.COMPUTE]:.0%}.")
    return Diagnosis(name=name, share=shares[name], words=" ".join(words))


def recoverable(phases: Mapping[str, float], ceilings: Mapping[str, float]) -> dict[Bottleneck, float]:
    """Share of the wall time each bottleneck accounts for: its phase; padding hides in the phases, so its counterfactual."""

    def saved(name: str) -> float:
        return 1.0 - 1.0 / max(ceilings[name], 1.0)

    compute = phases.get("forward", 0.0) + phases.get("backward", 0.0)
    padding = min(saved("padding"), compute) if "padding" in ceilings else 0.0
    shares = {
        Bottleneck.INPUT: phases.get("data", 0.0),
        Bottleneck.TRANSFER: phases.get("transfer", 0.0),
        Bottleneck.PADDING: padding,
        Bottleneck.OPTIMIZER: phases.get("optimizer", 0.0),
        Bottleneck.COMMUNICATION: phases.get("sync", 0.0),
        Bottleneck.LOGGING: phases.get("logging", 0.0),
        Bottleneck.VALIDATION: phases.get("validation", 0.0),
        Bottleneck.CHECKPOINT: phases.get("checkpoint", 0.0),
        Bottleneck.OTHER: phases.get("other", 0.0),
        Bottleneck.COMPUTE: max(compute - padding, 0.0),
    }
    return {name: min(max(share, 0.0), 1.0) for name, share in shares.items()}
