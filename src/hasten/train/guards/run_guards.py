"""Watch a run between its updates: whether it hangs, and whether memory runs low."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hasten.core.machine import read_memory_limit
from hasten.train.guards.incidents import Incident, Incidents
from hasten.train.guards.memory_growth import host_bytes
from hasten.train.guards.oom import free_memory
from hasten.train.guards.watchdog import Watchdog
from hasten.train.loop import Position

STACKS = "stacks"
"""Name of the folder, in a run's folder, for stack traces of hung processes."""
_LOOK_EVERY = 5
"""Updates between two looks at the memory in use, each of which takes some microseconds."""
_REST = 100
"""Minimum number of updates between two collections of unused memory."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Thresholds of the guards.

    Attributes:
        collect_frac: Share of the memory limit above which unused memory is collected.
        still_s: Seconds without an update that are always allowed.
        memory_bytes: The memory limit; None reads it from the machine, 0 is no limit.
    """

    collect_frac: float = 0.9
    still_s: float = 60.0
    memory_bytes: int | None = None


class Guards:
    """Watches a run. A context manager.

    Args:
        folder: Folder for stack traces if the run hangs.
        incidents: Records what is found.
        position: Returns the current position of the run.
        limits: Thresholds of the guards.
        memory: Returns the bytes that this process uses; None asks the system.

    Attributes:
        collections: Number of times that memory was collected because it ran low.
    """

    def __init__(
        self,
        folder: Path,
        incidents: Incidents,
        position: Callable[[], Position],
        *,
        limits: Limits | None = None,
        memory: Callable[[], int] | None = None,
    ) -> None:
        self._incidents, self._position = incidents, position
        limits = limits or Limits()
        total = read_memory_limit().value if limits.memory_bytes is None else limits.memory_bytes
        self._scarce = limits.collect_frac * total if total else float("inf")
        self._memory = memory or host_bytes
        self._updates = self._quiet_until = 0
        self.collections = 0
        self._watchdog = Watchdog(folder, lambda words: self._note("standstill", words), least_s=limits.still_s)

    def after_update(self) -> None:
        """Check the run after an update."""
        self._watchdog.beat()
        self._updates += 1
        if self._updates % _LOOK_EVERY == 0:
            self._look()

    def during(self, what: str) -> AbstractContextManager[None]:
        """Watch work other than an update, such as `validation`, while the returned context is entered."""
        return self._watchdog.during(what)

    def __enter__(self) -> Self:
        self._watchdog.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watchdog.__exit__(kind, error, trace)

    def _look(self) -> None:
        """Collect unused memory if memory runs low."""
        used = self._memory()
        update = self._position().update
        if used > self._scarce and update >= self._quiet_until:
            self._quiet_until = update + _REST
            self.collections += 1
            free_memory()
            if self.collections == 1:
                now = self._memory()
                self._note("memory", f"{used / 2**20:,.0f} MiB in use, {now / 2**20:,.0f} MiB after a collection")

    def _note(self, kind: str, words: str) -> None:
        position = self._position()
        self._incidents.note(
            Incident(kind=kind, update=position.update, epoch=position.epoch, words=words, action="the run continues")
        )
