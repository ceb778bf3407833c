"""Diagnose in words what limits a job: pure rules over measured phases and ceilings.

Every sentence names the measurements behind it; there is no sentence without them.

Thresholds are shares of the wall time. Input, transfer, optimizer and communication count from 10 %, logging, validation and
checkpoints from 5 %, padding from 20 % of the step. If more than 10 % is not explained by any phase, the answer is "other".
Sources: TraceML and Kineto use 5 to 20 % for input; the others are Hasten's own choice.
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
"""Ratio above which the others mostly wait for the slowest rank, not for the exchange."""

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
"""Bottleneck -> the phase whose share it is."""

_WORDS: Mapping[Bottleneck, str] = {
    Bottleneck.INPUT: "Training waits for data {share:.0%} of the time.",
    Bottleneck.TRANSFER: "Moving batches to the device takes {share:.0%} of the time.",
    Bottleneck.PADDING: "Padding: {share:.0%} of the time is spent computing positions without data.",
    Bottleneck.OPTIMIZER: "The optimizer step takes {share:.0%} of the time.",
    Bottleneck.COMMUNICATION: "Exchanging gradients and waiting for other ranks take {share:.0%} of the time.",
    Bottleneck.LOGGING: "Reading, printing and logging metrics take {share:.0%} of the time.",
    Bottleneck.VALIDATION: "Validation takes {share:.0%} of the time.",
    Bottleneck.CHECKPOINT: "Saving checkpoints takes {share:.0%} of the time.",
    Bottleneck.OTHER: "{share:.0%} of the time is not explained by any measured phase.",
    Bottleneck.COMPUTE: "The model itself: forward and backward passes{real} take {share:.0%} of the time.",
}
_READ = "Reading metrics takes {share:.0%} of the time."
_WRITTEN = "Printing, logging and reporting metrics take {share:.0%} of the time."
"""Sentences for logging that mostly waits for values to be read, and that mostly writes."""
_REAL = " on real data"
"""Inserted if padding was measured, because padding is then not included."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of a diagnosis.

    Attributes:
        words: The sentence.
        measured: The measurements behind it, such as `phases.data` or `wait_frac`; at least one.
    """

    words: str
    measured: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What limits the job.

    Attributes:
        name: The bottleneck.
        share: Its share of the wall time, 0 to 1.
        words: One or more sentences.
        sentences: The same sentences separately; empty for a diagnosis from another process.
    """

    name: Bottleneck
    share: float
    words: str
    sentences: tuple[Sentence, ...] = ()

    @classmethod
    def of(cls, name: Bottleneck, share: float, sentences: Sequence[Sentence]) -> Self:
        """Create a diagnosis from sentences."""
        words = " ".join(sentence.words for sentence in sentences) or "No phase was measured."
        return cls(name=name, share=share, words=words, sentences=tuple(sentences))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Restore a diagnosis from another process: its `name`, `share` and `words`."""
        return cls(name=Bottleneck(data["name"]), share=data["share"], words=data["words"])


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
        phases: Phase name -> share of wall time, for the measured phases.
        ceilings: Counterfactual -> measured largest gain as a ratio.
        wait_frac: Share of the fetching time in which its processes waited (storage, network, sleep) instead of computing;
            None if not measured.
        straggler: Compute time of the slowest rank over the mean of all ranks; None if not measured.
        logging_writes: Whether most of the logging time is spent writing, not reading values; None if not measured.
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

    sentences = says(name)
    if name is Bottleneck.INPUT and wait_frac is not None:
        words = (
            "Fetching mostly waits (for storage, the network or a sleep), so prefetching can hide it."
            if wait_frac > 0.5
            else "Fetching is CPU-bound: it computes more than it waits."
        )
        sentences.append(Sentence(words, ("wait_frac",)))
    if name is Bottleneck.COMMUNICATION and straggler is not None and straggler >= STRAGGLER:
        words = f"The slowest rank computes {straggler:.2f} times as long as the mean, so the others mostly wait for it."
        sentences.append(Sentence(words, ("straggler",)))
    rest = [item for item in over if item not in (name, Bottleneck.COMPUTE)]
    for item in sorted(rest, key=lambda item: -shares[item]):
        sentences += says(item, "Also: ")
    if name is not Bottleneck.COMPUTE:
        sentences += says(Bottleneck.COMPUTE)
    return Diagnosis.of(name, shares[name], sentences)


def recoverable(phases: Mapping[str, float], ceilings: Mapping[str, float]) -> dict[Bottleneck, float]:
    """Return each bottleneck's share of wall time: its phase, or the counterfactual for padding, which is within phases."""

    def saved(name: str) -> float:
        return 1.0 - 1.0 / max(ceilings[name], 1.0)

    compute = phases.get("forward", 0.0) + phases.get("backward", 0.0)
    padding = min(saved("padding"), compute) if "padding" in ceilings else 0.0
    shares = {item: phases.get(phase, 0.0) for item, phase in _PHASES.items()}
    shares |= {Bottleneck.PADDING: padding, Bottleneck.COMPUTE: max(compute - padding, 0.0)}
    return {name: min(max(share, 0.0), 1.0) for name, share in shares.items()}


def _measured(item: Bottleneck, phases: Mapping[str, float], ceilings: Mapping[str, float]) -> tuple[str, ...]:
    """Return the measurements behind a bottleneck's share."""
    passes = tuple(f"phases.{name}" for name in ("forward", "backward") if name in phases)
    padding = ("ceilings.padding",) if "padding" in ceilings else ()
    if item is Bottleneck.COMPUTE:
        return (*passes, *padding) if passes else ()
    if item is Bottleneck.PADDING:
        return (*padding, *passes) if padding else ()
    return (f"phases.{_PHASES[item]}",) if _PHASES[item] in phases else ()
