"""The contract of a sampler, and the reading of all samplers in a thread.

A sampler is a class with a card, in a file of `samplers/` or registered under the entry-point group `hasten.samplers`. It is
created with a `Host`, and raises MachineError then if what it needs is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any, ClassVar, Protocol

from hasten.core.errors import MachineError
from hasten.monitor.metric import Card

TRIES = 3
"""A sampler that fails this number of times in a row is switched off."""
PATIENCE_S = 5.0
"""A sampler that does not return within this number of seconds is switched off."""


def _nothing() -> None:
    return None


def _no_batches(_: int) -> list[list[int]]:
    return []


@dataclass(frozen=True, kw_only=True)
class Host:
    """What samplers may ask about the training process.

    Attributes:
        folder: The run's folder.
        device: Returns the index of the CUDA device in use; None if there is none.
        loader: Returns the iterator of the DataLoader in use; None if there is none.
        counters: Returns counters of the training, such as the hits of caches.
        job: The job; None for a script.
        batches: Returns the sample indices of all batches, over all ranks, that were trained on since a batch, which is
            counted from 0 over the whole run.
    """

    rank: int = 0
    folder: Path = Path()
    device: Callable[[], int | None] = _nothing
    loader: Callable[[], Any] = _nothing
    counters: Callable[[], Mapping[str, float]] = dict
    job: Any = None
    batches: Callable[[int], list[list[int]]] = _no_batches


class Sampler(Protocol):
    """Reads some metrics. It may have a method `close()`, called at the end of the run."""

    card: ClassVar[Card]

    def sample(self) -> Mapping[str, float]:
        """Return the metrics that can be read now. Rates are those since the last call."""
        ...


class Samplers:
    """Reads samplers, one after the other, in a thread. None of them can take the others along.

    `say` is called with a message about each sampler that is switched off.

    Attributes:
        missing: Why a sampler is not read, by name.
        failures: Number of failed readings.
        cpu_s: CPU seconds of the last reading, without the creation of samplers.
    """

    def __init__(self, kinds: Mapping[str, Callable[[Host], Sampler]], host: Host, say: Callable[[str], None]) -> None:
        self._waiting, self._host, self._say = dict(kinds), host, say
        self._samplers: dict[str, Sampler] = {}
        self._in_a_row: dict[str, int] = {}
        self._reading: threading.Event | None = None
        self._now = ""
        self.missing: dict[str, str] = {}
        self.failures = 0
        self.cpu_s = 0.0

    def read(self) -> dict[str, float]:
        """Return the values of all samplers. One that does not return in time is switched off, and its thread abandoned."""
        values: dict[str, float] = {}
        reading = self._reading = threading.Event()
        threading.Thread(target=self._read, args=(values, reading), name="hasten-samplers", daemon=True).start()
        if not reading.wait(PATIENCE_S):
            self._reading = None
            self._switch_off(self._now, f"it did not return within {PATIENCE_S:.0f} s")
        return dict(values)

    def close(self) -> None:
        """Close the samplers that can be closed."""
        for name, sampler in self._samplers.items():
            try:
                getattr(sampler, "close", _nothing)()
            except Exception as error:  # noqa: BLE001 - as in `_read`
                self._say(f"the sampler `{name}` could not be closed: {type(error).__name__}: {error}")

    def _read(self, values: dict[str, float], reading: threading.Event) -> None:
        while self._waiting and self._reading is reading:
            self._now = name = next(iter(self._waiting))
            self._create(name, self._waiting.pop(name))
        began = thread_time()
        for name, sampler in list(self._samplers.items()):
            self._now = name
            try:
                read = {key: float(value) for key, value in sampler.sample().items()}
            except Exception as error:  # noqa: BLE001 - a sampler may fail in any way, and the others are still read
                self._failed(name, error)
                continue
            if self._reading is not reading:
                return  # this thread was abandoned
            self._in_a_row[name] = 0
            values.update(read)
        self.cpu_s = thread_time() - began
        reading.set()

    def _create(self, name: str, kind: Callable[[Host], Sampler]) -> None:
        try:
            sampler = kind(self._host)
        except MachineError as error:
            self.missing[name] = str(error)
        except Exception as error:  # noqa: BLE001 - as in `_read`
            self.failures += 1
            self._switch_off(name, f"{type(error).__name__}: {error}")
        else:
            if name not in self.missing:
                self._samplers[name] = sampler

    def _failed(self, name: str, error: Exception) -> None:
        self.failures += 1
        self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        if self._in_a_row[name] >= TRIES and name in self._samplers:
            self._switch_off(name, f"it failed {TRIES} times in a row, the last with {type(error).__name__}: {error}")

    def _switch_off(self, name: str, why: str) -> None:
        self._samplers.pop(name, None)
        self.missing[name] = why
        self._say(f"the sampler `{name}` is switched off: {why}. The training and the other samplers go on.")
