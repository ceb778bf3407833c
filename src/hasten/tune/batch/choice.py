"""Choose how many samples are computed at once, from measurements: pure functions, free of processes and clocks.

Two sizes are kept apart. The *optimizer batch* is what one update sees: the job's `batch_size` times its `accumulation`; it
is part of the mathematics and stays. The *microbatch* is what is computed at once; it is a matter of speed and memory.
Larger is not always faster, so the choice goes by measured speed among the sizes that fit. Where the measurements cannot
tell two apart, the job's own size stays, unless another saves notable memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hasten.core.card import Trait
from hasten.core.optimization import Optimization
from hasten.core.stats import MIN_FLOOR_FRAC
from hasten.optimizations import catalogue

CONFIDENCE = 0.9
NOTABLE_FRAC = 0.2
"""So much of the peak memory must be saved before a size of no other merit is worth an entry in the plan."""
SWEEPS = 50
"""Rounds and sizes are fitted in turn; a table without gaps needs one sweep, and one with gaps a few."""


def techniques() -> dict[str, type[Optimization]]:
    """What makes a job compute another number of samples at once."""
    return {name: kind for name, kind in catalogue().items() if Trait.MICROBATCH in kind.card.traits}


@dataclass(frozen=True, kw_only=True, order=True)
class Size:
    """A microbatch size and how a job comes to compute it.

    Attributes:
        samples: Computed at once.
        parts: Parts each micro-batch of the job is cut into; 1 is none.
        merge: Micro-batches of the job that are merged into one; 1 is none.
    """

    samples: int
    parts: int = 1
    merge: int = 1

    def settings(self) -> dict[str, dict[str, Any]]:
        """What belongs into the plan: a technique and its settings; empty where the job computes this size by itself."""
        made = self.optimization()
        return {made.card.name: made.settings()} if made else {}

    def optimization(self) -> Optimization | None:
        """The technique that makes it so; None where the job computes this size by itself."""
        made = (kind.computing(parts=self.parts, merge=self.merge) for kind in techniques().values())
        return next(filter(None, made), None)


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """A microbatch size with what was measured.

    Attributes:
        size: Samples computed at once.
        samples_per_s: Median over the turns; None where it was not timed.
        low: Lower end of the interval of that median; None where there were no turns.
        high: Upper end of it.
        peak_bytes: Peak memory of its process; None where it did not live to tell.
        fits: Whether it fits with head-room, as far as is known.
        why: Why it does not fit, or was not tried, or was not timed in turns; empty otherwise.
    """

    size: int
    samples_per_s: float | None = None
    low: float | None = None
    high: float | None = None
    peak_bytes: int | None = None
    fits: bool = False
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def candidate_sizes(batch_size: int, accumulation: int) -> list[Size]:
    """The sizes worth trying, smallest first: divisors of the optimizer batch, and powers of two.

    A size that the job cannot compute exactly is replaced by what its plan would compute: below `batch_size` each
    micro-batch is cut into parts of like size, above it whole micro-batches are merged.

    Raises:
        ValueError: A number is below 1.
    """
    if batch_size < 1 or accumulation < 1:
        raise ValueError(f"sizes need whole numbers of at least 1, not {batch_size} and {accumulation}")
    whole = batch_size * accumulation
    wanted = {size for size in range(1, math.isqrt(whole) + 1) if whole % size == 0}
    wanted |= {whole // size for size in wanted} | {1 << power for power in range(whole.bit_length())} | {batch_size}
    sizes = {realised(size, batch_size) for size in wanted}
    return sorted(sizes)


def realised(samples: int, batch_size: int) -> Size:
    """The nearest size, not above `samples`, that a job with this `batch_size` can compute."""
    if samples >= batch_size:
        merge = samples // batch_size
        return Size(samples=batch_size * merge, merge=merge)
    parts = -(-batch_size // samples)
    return Size(samples=-(-batch_size // parts), parts=parts)


def with_head_room(limit_bytes: int, head_room_frac: float) -> int:
    """What may be used of a limit, in bytes."""
    return int(limit_bytes * (1.0 - head_room_frac))


# Speed.


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a median from order statistics, without any assumption on how the values scatter.

    The k-th smallest and the k-th largest of n values enclose the median with probability 1 - 2 P(B < k), where B is
    binomial with n tries of one half (Conover, Practical Nonparametric Statistics, 3.2). With too few values for
    `confidence` (fewer than 5 for 0.9) it is the whole range.

    Raises:
        ValueError: There is no value.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ranked, rank = sorted(values), 1
    tail = 0.5 ** len(ranked)
    while 2 * (rank + 1) <= len(ranked) + 1:
        tail += math.comb(len(ranked), rank) * 0.5 ** len(ranked)
        if 1.0 - 2.0 * tail < confidence:
            break
        rank += 1
    return ranked[rank - 1], ranked[-rank]


def without_drift(turns: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    """Samples/s by size with what a round did to all sizes taken out: the machine's drift, and the samples of that round.

    All sizes take a turn in each round, one after the other, and on the same samples, so a slow round is slow for all. Speed
    is taken as (level of the size) x (factor of the round), fitted on logarithms; the factors average 1. A size may stop
    earlier than others: its turns are those of the first rounds.

    Raises:
        ValueError: A speed is not above 0.
    """
    if any(not speed > 0.0 for speeds in turns.values() for speed in speeds):
        raise ValueError(f"speeds must be above 0: {dict(turns)}")
    logs = {size: [math.log(speed) for speed in speeds] for size, speeds in turns.items() if speeds}
    rounds = max((len(speeds) for speeds in logs.values()), default=0)
    factors = [0.0] * rounds
    for _ in range(SWEEPS):
        levels = {size: statistics.fmean(log - factors[i] for i, log in enumerate(own)) for size, own in logs.items()}
        factors = [
            statistics.fmean(own[i] - levels[size] for size, own in logs.items() if len(own) > i) for i in range(rounds)
        ]
        middle = statistics.fmean(factors) if factors else 0.0
        factors = [factor - middle for factor in factors]
    if len(logs) == 1:  # with nobody to compare with, what looks like drift is all that is known of the scatter
        factors = [0.0] * rounds
    return {size: [math.exp(log - factors[i]) for i, log in enumerate(own)] for size, own in logs.items()}


def behind(turns: Mapping[int, Sequence[float]]) -> set[int]:
    """The sizes that are slower than the fastest one beyond doubt: they need no further turn."""
    speeds = without_drift(turns)
    intervals = {size: median_interval(own) for size, own in speeds.items()}
    if not intervals:
        return set()
    best = max(intervals, key=lambda size: statistics.median(speeds[size]))
    return {size for size, (_, high) in intervals.items() if high * (1.0 + MIN_FLOOR_FRAC) < intervals[best][0]}


# The choice.


def choose(candidates: Sequence[MeasuredSize], own: int = 0) -> MeasuredSize | None:
    """The fastest size that fits; of those that cannot be told from it, the job's own, or the one with the least memory.

    A plan that changes nothing is worth more than a little memory: of tied sizes the job's own wins unless another takes at
    least `NOTABLE_FRAC` less.

    Two sizes are tied where their intervals overlap, or where they differ by less than counts as a difference anywhere
    in Hasten. None where nothing fits, or nothing that fits was timed in turns.
    """
    timed = [item for item in candidates if item.fits and None not in (item.samples_per_s, item.low, item.high)]
    best = max(timed, key=_speed, default=None)
    if best is None:
        return None
    floor = _speed(best) / (1.0 + MIN_FLOOR_FRAC)
    tied = [item for item in timed if (item.high or 0.0) >= (best.low or 0.0) or _speed(item) >= floor]
    least = min(tied, key=lambda item: (item.peak_bytes or 0, -_speed(item)))
    own_size = next((item for item in tied if item.size == own), None)
    if own_size is not None and (least.peak_bytes or 0) > (1.0 - NOTABLE_FRAC) * (own_size.peak_bytes or 0):
        return own_size
    return least


def _speed(candidate: MeasuredSize) -> float:
    return candidate.samples_per_s or 0.0
