"""A sample is the run of one process (or one turn of a resident process): its time per item and the machine load meanwhile.

The time per item is the median over blocks of updates, not over single updates. With loader workers, updates come in bursts,
and periodic costs (reading, garbage collection) affect few of them, so the median of single updates would hide both. If
updates differ in length by nature, it is the total time divided by the total number of items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hasten.core.stats import block_median
from hasten.report import evidence

NUM_BLOCKS = 5
"""Number of blocks of updates in a sample."""
MIN_BLOCK_UPDATES = 8
"""Minimum number of updates per block; with fewer, the total time is used."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A measured run.

    Attributes:
        arm: `A` (base) or `B` (candidate).
        pair: Number of its pair.
        seconds_per_item: The value that is compared.
        seconds: Wall time of the counted updates.
        items: Number of the job's samples that were trained.
        updates: Number of counted updates.
        cpu_seconds: CPU time of the process and its workers.
        foreign_cpu_frac: Share of the machine that other processes used; None if unknown.
        major_faults: Page faults from disk.
        minor_faults: Page faults from memory.
        spoilt: Whether other processes used too much of the machine; such a pair is repeated and not counted.
        peak_bytes: Peak memory, if it was read.
    """

    arm: str
    pair: int
    seconds_per_item: float
    seconds: float
    items: int
    updates: int
    cpu_seconds: float
    foreign_cpu_frac: float | None
    major_faults: int
    minor_faults: int
    spoilt: bool
    peak_bytes: int | None = None

    def to_evidence(self) -> evidence.Sample:
        """Return it as in the evidence file."""
        return evidence.Sample(**asdict(self))


def make_sample(arm: str, pair: int, answer: Mapping[str, Any], *, uneven: bool, peak_bytes: int | None = None) -> Sample:
    """Return a sample from a worker's answer to `run`. `uneven`: updates differ in length by nature."""
    times, items = answer["times"], answer["items"]
    total_s, total_items = sum(times), sum(items)
    per_item = total_s / max(total_items, 1)
    if not uneven and len(times) >= NUM_BLOCKS * MIN_BLOCK_UPDATES:
        per_item = block_median([t / max(n, 1) for t, n in zip(times, items, strict=True)], NUM_BLOCKS)
    return Sample(
        arm=arm,
        pair=pair,
        seconds_per_item=per_item,
        seconds=total_s,
        items=total_items,
        updates=len(times),
        cpu_seconds=answer["cpu_seconds"],
        foreign_cpu_frac=answer["foreign_cpu_frac"],
        major_faults=answer["major_faults"],
        minor_faults=answer["minor_faults"],
        spoilt=answer["spoilt"],
        peak_bytes=peak_bytes,
    )
