"""Measure where a stream's time goes: the cost of its batches, and how long the training loop waited for them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(kw_only=True)
class StageTimes:
    """Sum the times of all threads since the stream was created.

    Attributes:
        batches: Number of batches returned.
        samples: Number of samples in these batches.
        gather_s: Seconds spent picking rows from the store, including reading.
        form_s: Seconds spent converting them to arrays or tensors.
        transform_s: Seconds spent in the user's transform.
        wait_s: Seconds that the training loop waited for batches.
    """

    batches: int = 0
    samples: int = 0
    gather_s: float = 0.0
    form_s: float = 0.0
    transform_s: float = 0.0
    wait_s: float = 0.0


class Times:
    """Add up stage times. Safe for use by several threads. Copies sent to other processes start at 0."""

    def __init__(self) -> None:
        self.sums = StageTimes()
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, _state: dict[str, object]) -> None:
        self.__init__()  # type: ignore[misc]

    def stage(self, name: str) -> _Stage:
        """Add the time spent in a `with` block to the stage `name` (without `_s`)."""
        return _Stage(self, f"{name}_s")

    def waited(self, seconds: float) -> None:
        """Add the time that the loop waited. Only the loop calls this, so no lock is needed."""
        self.sums.wait_s += seconds

    def add(self, **amounts: float) -> None:
        """Add to the sums."""
        with self._guard:
            for name, amount in amounts.items():
                setattr(self.sums, name, getattr(self.sums, name) + amount)


class _Stage:
    """Time one stage. A class, because a generator would cost 1 % of the time of a batch of strings."""

    __slots__ = ("_name", "_start", "_times")

    def __init__(self, times: Times, name: str) -> None:
        self._times, self._name, self._start = times, name, 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._times.add(**{self._name: time.perf_counter() - self._start})
