"""Choose the number of samples to compute at once, from measurements. Pure functions, without processes or clocks.

Two sizes are distinct. The *optimizer batch* is what one update sees: the job's `batch_size` times its `accumulation`. It is
part of the mathematics and is kept. The *microbatch* is what is computed at once, which affects only speed and memory.
Larger is not always faster, so the choice is by measured speed among the sizes that fit. If the measurements cannot
distinguish two sizes, the job's own size is kept, unless another one saves much memory.
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
"""Confidence of the interval of a median."""
NOTABLE_FRAC = 0.2
"""Minimum share of peak memory that an equally fast size must save to be worth an entry in the plan."""
SWEEPS = 50
"""Number of alternating fits of rounds and sizes. A complete table needs one, an incomplete one a few."""


def techniques() -> dict[str, type[Optimization]]:
    """Return the techniques that change the number of samples that a job computes at once."""
    return {name: kind for name, kind in catalogue().items() if Trait.MICROBATCH in kind.card.traits}


@dataclass(frozen=True, kw_only=True, order=True)
class Size:
    """A microbatch size and how a job computes it.

    Attributes:
        samples: Samples computed at once.
        parts: Number of parts that each micro-batch of the job is cut into; 1 leaves it whole.
        merge: Number of micro-batches of the job that are merged into one; 1 merges none.
    """

    samples: int
    parts: int = 1
    merge: int = 1

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the technique and its settings for the plan; empty if the job computes this size without one."""
        technique = self.optimization()
        return {technique.card.name: technique.settings()} if technique else {}

    def optimization(self) -> Optimization | None:
        """Return the technique that produces this size; None if the job computes it without one."""
        options = (kind.computing(parts=self.parts, merge=self.merge) for kind in techniques().values())
        return next(filter(None, options), None)


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """A microbatch size with its measurements.

    Attributes:
        size: Samples computed at once.
        samples_per_s: Median over the turns; None if it was not timed.
        low: Lower end of the interval of that median; None without turns.
        high: Upper end of the interval.
        peak_bytes: Peak memory of its process; None if the process died.
        fits: Whether it is known to fit with headroom.
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
        """Return it as JSON."""
        return asdict(self)


def candidate_sizes(batch_size: int, accumulation: int) -> list[Size]:
    """Return the sizes worth trying, smallest first: divisors of the optimizer batch, and powers of two.

    A size that the job cannot compute exactly is replaced by what its plan would compute: below `batch_size` each
    micro-batch is cut into parts of similar size, above it whole micro-batches are merged.

    Raises:
        ValueError: A number is below 1.
    """
    if batch_size < 1 or accumulation < 1:
        raise ValueError(f"batch_size and accumulation must be at least 1, not {batch_size} and {accumulation}")
    whole = batch_size * accumulation
    wanted = {size for size in range(1, math.isqrt(whole) + 1) if whole % size == 0}
    wanted |= {whole // size for size in wanted} | {1 << power for power in range(whole.bit_length())} | {batch_size}
    sizes = {realised(size, batch_size) for size in wanted}
    return sorted(sizes)


def realised(samples: int, batch_size: int) -> Size:
    """Return the largest size up to `samples` that a job with this `batch_size` can compute."""
    if samples >= batch_size:
        merge = samples // batch_size
        return Size(samples=batch_size * merge, merge=merge)
    parts = -(-batch_size // samples)
    return Size(samples=-(-batch_size // parts), parts=parts)


def with_head_room(limit_bytes: int, head_room_frac: float) -> int:
    """Return how many bytes of a limit may be used."""
    return int(limit_bytes * (1.0 - head_room_frac))


# Speed.


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of a median from order statistics, without assumptions on the distribution.

    The k-th smallest and the k-th largest of n values enclose the median with probability 1 - 2 P(B < k), where B is
    binomial with n trials of probability one half (Conover, Practical Nonparametric Statistics, 3.2). With too few values
    for `confidence` (fewer than 5 for 0.9) it is the whole range.

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
    """Return samples/s by size without the common effect of each round: the machine's drift, and that round's samples.

    All sizes take a turn in each round, one after the other and on the same samples, so a slow round is slow for all. Speed
    is modelled as (level of the size) x (factor of the round), fitted on logarithms; the factors average 1. A size may stop
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
    if len(logs) == 1:  # a single size cannot separate drift from scatter
        factors = [0.0] * rounds
    return {size: [math.exp(log - factors[i]) for i, log in enumerate(own)] for size, own in logs.items()}


def behind(turns: Mapping[int, Sequence[float]]) -> set[int]:
    """Return the sizes that are slower than the fastest one beyond doubt; they need no further turn."""
    speeds = without_drift(turns)
    intervals = {size: median_interval(own) for size, own in speeds.items()}
    if not intervals:
        return set()
    best = max(intervals, key=lambda size: statistics.median(speeds[size]))
    return {size for size, (_, high) in intervals.items() if high * (1.0 + MIN_FLOOR_FRAC) < intervals[best][0]}


# The choice.


def choose(candidates: Sequence[MeasuredSize], own: int = 0) -> MeasuredSize | None:
    """Choose the fastest size that fits. Of sizes tied with it, choose the job's own, or the one with the least memory.

    A plan that changes nothing is worth more than a little memory: of tied sizes the job's own wins unless another needs
    `NOTABLE_FRAC` less memory.

    Two sizes are tied if their intervals overlap, or if they differ by less than the smallest difference that counts
    anywhere in Hasten. Returns None if nothing fits, or nothing that fits was timed in turns.
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
