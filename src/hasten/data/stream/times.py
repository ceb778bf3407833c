"""Where a stream's time goes: what its batches cost, and how long the training loop waited for them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(kw_only=True)
class StageTimes:
    """Sums since the stream was made, over all of its threads.

    Attributes:
        batches: Given out.
        samples: In them.
        gather_s: Seconds spent picking rows out of the store, reading included.
        form_s: Seconds spent making arrays or tensors of them.
        transform_s: Seconds spent in the user's transform.
        wait_s: Seconds for which the loop that iterates waited.
    """

    batches: int = 0
    samples: int = 0
    gather_s: float = 0.0
    form_s: float = 0.0
    transform_s: float = 0.0
    wait_s: float = 0.0


class Times:
    """Adds up stage times. Safe for several threads; it may be sent to other processes, where it begins at 0."""

    def __init__(self) -> None:
        self.sums = StageTimes()
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, _state: dict[str, object]) -> None:
        self.__init__()  # type: ignore[misc]

    def stage(self, name: str) -> _Stage:
        """Add what happens within a `with` to the stage `name` (without `_s`)."""
        return _Stage(self, f"{name}_s")

    def waited(self, seconds: float) -> None:
        """Add what the loop waited: it alone does, so that nobody has to be kept out."""
        self.sums.wait_s += seconds

    def add(self, **amounts: float) -> None:
        """Add to the sums."""
        with self._guard:
            for name, amount in amounts.items():
                setattr(self.sums, name, getattr(self.sums, name) + amount)


class _Stage:
    """One stage under way: a class, since a generator would cost a batch of strings a hundredth of its time."""

    __slots__ = ("_name", "_start", "_times")

    def __init__(self, times: Times, name: str) -> None:
        self._times, self._name, self._start = times, name, 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._times.add(**{self._name: time.perf_counter() - self._start})
