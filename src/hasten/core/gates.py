"""Decide whether something may go on: every slice must pass by its confidence bound, and what is not known does not pass.

    gate = Gate(metric="crisis competency", threshold=0.85, slices=("teens", "adults"))
    gate.check({"teens": 240, "adults": 900})                                  # refuses a gate that could not decide
    gate.decide({"teens": Share(221, 240), "adults": Share(840, 900)}).passed

A mean over slices hides a slice that got worse, so none is taken. Shares are judged by their Wilson interval.

Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from hasten.core.errors import JobError


class Share(NamedTuple):
    """A share that was counted: `hits` of `items`."""

    hits: int
    items: int

    @property
    def value(self) -> float:
        """The share; NaN if nothing was counted."""
        return self.hits / self.items if self.items else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the Wilson interval, from 0 to 1; all of it if nothing was counted."""
        if not self.items:
            return 0.0, 1.0
        z, share = _z(confidence), self.hits / self.items
        weight = 1 + z * z / self.items
        middle = (share + z * z / (2 * self.items)) / weight
        half = z * math.sqrt(share * (1 - share) / self.items + z * z / (4 * self.items**2)) / weight
        return middle - half if self.hits else 0.0, middle + half if self.hits < self.items else 1.0


class Estimate(NamedTuple):
    """A number with its confidence interval, such as a perplexity over conversations.

    Attributes:
        value: The number.
        low: Lower end of the interval.
        high: Upper end of the interval.
        items: Number of items that it was computed from; 0 if that is unknown.
    """

    value: float
    low: float
    high: float
    items: int = 0


class Decision(NamedTuple):
    """What a gate decided.

    Attributes:
        passed: Whether every slice passed.
        words: One line for each slice, with the reason.
    """

    passed: bool
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A condition on a metric.

    Attributes:
        metric: Name of the metric, for messages.
        threshold: What its confidence bound must reach.
        at_most: Whether the metric must be at most the threshold, instead of at least.
        slices: What must pass, each by itself.
        confidence: Confidence of the interval, two-sided.
        margin: For shares: largest distance allowed between a share at the threshold and its confidence bound.

    Raises:
        JobError: A value is out of range.
    """

    metric: str
    threshold: float
    at_most: bool = False
    slices: tuple[str, ...] = ("all",)
    confidence: float = 0.95
    margin: float = 0.05

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold) or not 0.5 <= self.confidence < 1 or not 0 < self.margin < 1:
            raise JobError(
                f"the gate of {self.metric} needs a finite threshold, a confidence from 0.5 to 1 and a margin below 1."
            )
        if not self.slices or len(set(self.slices)) < len(self.slices):
            raise JobError(f"the gate of {self.metric} needs one or more slices with different names.")

    @property
    def needed(self) -> int:
        """Items that a slice needs so that a share at the threshold is known within `margin`."""
        return math.ceil(_z(self.confidence) ** 2 * self.threshold * (1 - self.threshold) / self.margin**2)

    def check(self, items: Mapping[str, int]) -> None:
        """Check, before anything is run, that shares of so many items can be decided.

        Args:
            items: Slice -> number of items.

        Raises:
            JobError: The threshold is no share, or a slice has too few items or none.
        """
        if not 0 < self.threshold < 1:
            raise JobError(f"{self.metric} is a share: its threshold must be between 0 and 1, not {self.threshold:g}.")
        for name in self.slices:
            count = items.get(name, 0)
            if count < self.needed:
                spread = _z(self.confidence) * math.sqrt(self.threshold * (1 - self.threshold) / count) if count else 1.0
                raise JobError(
                    f"{self.metric}, {name}: {count:,} items tell a share of {self.threshold:g} within {100 * spread:.1f} "
                    f"points only. Give at least {self.needed:,}, or allow a margin of {100 * spread:.1f} points."
                )

    def decide(self, results: Mapping[str, Share | Estimate | None]) -> Decision:
        """Decide. A slice that is missing, None, NaN or without an interval does not pass.

        Args:
            results: Slice -> what was measured.
        """
        found = [self._one(name, results.get(name)) for name in self.slices]
        return Decision(all(passed for passed, _ in found), tuple(words for _, words in found))

    def _one(self, name: str, result: Share | Estimate | None) -> tuple[bool, str]:
        where, wanted = f"{self.metric}, {name}", f"{'at most' if self.at_most else 'at least'} {self.threshold:g}"
        if result is None:
            return False, f"{where}: not passed, it was not measured ({wanted} is needed)"
        if isinstance(result, Share):
            if not 0 <= result.hits <= result.items or not result.items:
                return False, f"{where}: not passed, {result.hits} of {result.items} is no share"
            (low, high), value = result.interval(self.confidence), result.value
            of = f" of {result.items:,}"
        else:
            value, low, high, items = result
            of = f" from {items:,}" if items else ""
            if not low <= value <= high or not math.isfinite(high - low):
                return False, f"{where}: not passed, {value:g} ({low:g} to {high:g}) is no number with an interval"
        passed = high <= self.threshold if self.at_most else low >= self.threshold
        return (
            passed,
            f"{where}: {'passed' if passed else 'not passed'}, {value:.3g}{of} ({low:.3g} to {high:.3g}), {wanted}",
        )


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
