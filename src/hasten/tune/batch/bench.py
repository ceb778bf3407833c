"""What the search of a microbatch size asks of the place where sizes are measured, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hasten.tune.batch.choice import Size


@dataclass(frozen=True, kw_only=True)
class Scouted:
    """What is known of a job before any size is tried.

    Attributes:
        batch_size: The job's.
        accumulation: The job's.
        device: `cpu`, `cuda`, ...
        indices: The samples of one optimizer batch, the longest first.
        longest: How long the longest is.
        unit: Of that: `items` or `bytes`.
        scanned: Samples that were looked at.
        num_samples: Of so many.
        refused: Why a technique cannot be used with this job, by its name.
        host_limit_bytes: Main memory there is.
    """

    batch_size: int
    accumulation: int
    device: str = "cpu"
    indices: tuple[int, ...] = ()
    longest: int = 0
    unit: str = "items"
    scanned: int = 0
    num_samples: int = 0
    refused: Mapping[str, str]
    host_limit_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a process took that held the longest samples.

    Attributes:
        update_s: Seconds of its last update.
        peak_bytes: Its peak memory.
        limit_bytes: What that is held to.
        retries: How often its allocator had to give memory back to get some.
        typical_s: Seconds of one update on the job's own data.
    """

    update_s: float
    typical_s: float
    peak_bytes: int
    limit_bytes: int
    retries: int = 0


@dataclass(frozen=True)
class Turn:
    """What a turn gave: its speed, and whether a neighbour took so much of the machine that it says little."""

    samples_per_s: float
    spoilt: bool = False


class Race(Protocol):
    """Sizes that take turns."""

    def turn(self, size: Size, updates: int, number: int) -> Turn:
        """Do `updates` updates on the job's own data, in round `number`. Raises TrialError."""
        ...


class Lab(Protocol):
    """Where sizes are measured."""

    def scout(self) -> Scouted:
        """Find the longest samples. Raises TrialError."""
        ...

    def hold(self, size: Size, updates: int) -> Held:
        """Do `updates` updates on the longest samples, in a process of its own. Raises TrialError, PlanError."""
        ...

    def race(self, sizes: Sequence[Size], *, together: bool) -> AbstractContextManager[Race]:
        """Let sizes take turns; `together`: their processes live side by side."""
        ...
