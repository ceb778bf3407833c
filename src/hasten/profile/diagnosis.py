"""Say in words what holds a job back: pure rules over measured phases and ceilings.

Every sentence names the measurements behind it, and none is said without them.

Thresholds as shares of the wall time. Input, transfer, optimizer and communication count from 10 %, logging, validation
and checkpoints from 5 %, padding from 20 % of the step; above 10 % that no phase explains, the answer is "other". Sources:
TraceML and Kineto use 5 to 20 % for input; the others are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

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

_PHASES: Mapping[Bottleneck, str] = {
    Bottleneck.INPUT: "data",
    Bottleneck.TRANSFER: "transfer",
    Bottleneck.OPTIMIZER: "optimizer",
    Bottleneck.COMMUNICATION: "sync",
    Bottleneck.LOGGING: "logging",
    Bottleneck.VALIDATION: "validation",
    Bottleneck.CHECKPOINT: "checkpoint",
    Bottleneck.OTHER: "other",
}
"""The phase whose share each of them is."""

_WORDS: Mapping[Bottleneck, str] = {
    Bottleneck.INPUT: "Training waits for data {share:.0%} of the time.",
    Bottleneck.TRANSFER: "Moving batches to the device takes {share:.0%} of the time.",
    Bottleneck.PADDING: "Padding: {share:.0%} of the time is spent computing positions that hold no data.",
    Bottleneck.OPTIMIZER: "The optimizer step takes {share:.0%} of the time.",
    Bottleneck.COMMUNICATION: "The ranks exchange gradients, and wait for one another, {share:.0%} of the time.",
    Bottleneck.LOGGING: "Reading, printing and logging metrics take {share:.0%} of the time.",
    Bottleneck.VALIDATION: "Validation takes {share:.0%} of the time.",
    Bottleneck.CHECKPOINT: "Saving checkpoints takes {share:.0%} of the time.",
    Bottleneck.OTHER: "No measured phase explains {share:.0%} of the time.",
    Bottleneck.COMPUTE: "The model itself: forward and backward passes{real} take {share:.0%} of the time.",
}
_READ = "Reading metrics takes {share:.0%} of the time."
_WRITTEN = "Printing, logging and reporting metrics take {share:.0%} of the time."
"""Of logging that waits for values to be read, and that writes."""
_REAL = " on real data"
"""Said where padding was measured, and is not among it."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of a diagnosis.

    Attributes:
        words: What it says.
        measured: What was measured that says so, such as `phases.data` or `wait_frac`; at least one.
    """

    words: str
    measured: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What holds the job back.

    Attributes:
        name: The bottleneck.
        share: Its share of the wall time, 0 to 1.
        words: One or more sentences.
        sentences: The same one by one, where it was made here.
    """

    name: Bottleneck
    share: float
    words: str
    sentences: tuple[Sentence, ...] = ()

    @classmethod
    def of(cls, name: Bottleneck, share: float, sentences: Sequence[Sentence]) -> Self:
        """A diagnosis that says these sentences."""
        words = " ".join(sentence.words for sentence in sentences) or "No phase was measured."
        return cls(name=name, share=share, words=words, sentences=tuple(sentences))

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """One that another process made: its `name`, `share` and `words`."""
        return cls(name=Bottleneck(told["name"]), share=told["share"], words=told["words"])


def diagnose(
    phases: Mapping[str, float],
    ceilings: Mapping[str, float],
    *,
    wait_frac: float | None = None,
    straggler: float | None = None,
    logging_writes: bool | None = None,
) -> Diagnosis:
    """Name the bottleneck.

    Args:
        phases: Phase name -> share of wall time; those that were measured.
        ceilings: Counterfactual -> measured largest gain as a ratio.
        wait_frac: Share of the time of fetching in which its processes waited (storage, network, sleep) instead of
            computing; None where that was not measured.
        straggler: The slowest rank's time of computing over the mean of all ranks; None as above.
        logging_writes: Most of the logging is what is written somewhere, not the reading of values it writes; None as above.
    """
    shares = recoverable(phases, ceilings)
    over = {name: share for name, share in shares.items() if share >= THRESHOLDS.get(name, 0.0)}
    name = max(over, key=lambda item: over[item], default=Bottleneck.COMPUTE)

    def says(item: Bottleneck, before: str = "") -> list[Sentence]:
        measured = _measured(item, phases, ceilings)
        if not measured:
            return []
        text = _WORDS[item]
        if item is Bottleneck.LOGGING and logging_writes is not None:
            text, measured = (_WRITTEN if logging_writes else _READ), (*measured, "logging_writes")
        real = _REAL if "ceilings.padding" in measured else ""
        return [Sentence(before + text.format(share=shares[item], real=real), measured)]

    found = says(name)
    if name is Bottleneck.INPUT and wait_frac is not None:
        words = (
            "Fetching mostly waits (for storage, the network or a sleep), so fetching ahead can hide it."
            if wait_frac > 0.5
            else "Fetching keeps a core busy: it computes more than it waits."
        )
        found.append(Sentence(words, ("wait_frac",)))
    if name is Bottleneck.COMMUNICATION and straggler is not None and straggler >= STRAGGLER:
        words = f"The slowest rank computes {straggler:.2f} times as long as the mean: the others mostly wait for it."
        found.append(Sentence(words, ("straggler",)))
    rest = [item for item in over if item not in (name, Bottleneck.COMPUTE)]
    for item in sorted(rest, key=lambda item: -shares[item]):
        found += says(item, "Besides: ")
    if name is not Bottleneck.COMPUTE:
        found += says(Bottleneck.COMPUTE)
    return Diagnosis.of(name, shares[name], found)


def recoverable(phases: Mapping[str, float], ceilings: Mapping[str, float]) -> dict[Bottleneck, float]:
    """Share of the wall time each bottleneck accounts for: its phase; padding hides in the phases, so its counterfactual."""

    def saved(name: str) -> float:
        return 1.0 - 1.0 / max(ceilings[name], 1.0)

    compute = phases.get("forward", 0.0) + phases.get("backward", 0.0)
    padding = min(saved("padding"), compute) if "padding" in ceilings else 0.0
    shares = {item: phases.get(phase, 0.0) for item, phase in _PHASES.items()}
    shares |= {Bottleneck.PADDING: padding, Bottleneck.COMPUTE: max(compute - padding, 0.0)}
    return {name: min(max(share, 0.0), 1.0) for name, share in shares.items()}


def _measured(item: Bottleneck, phases: Mapping[str, float], ceilings: Mapping[str, float]) -> tuple[str, ...]:
    """What was measured of a bottleneck's share."""
    passes = tuple(f"phases.{name}" for name in ("forward", "backward") if name in phases)
    padding = ("ceilings.padding",) if "padding" in ceilings else ()
    if item is Bottleneck.COMPUTE:
        return (*passes, *padding) if passes else ()
    if item is Bottleneck.PADDING:
        return (*padding, *passes) if padding else ()
    return (f"phases.{_PHASES[item]}",) if _PHASES[item] in phases else ()
