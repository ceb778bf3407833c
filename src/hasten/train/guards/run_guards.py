"""All that looks after a run between its updates: whether it moves, whether it grows, whether memory becomes scarce."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hasten.core.machine import read_memory_limit
from hasten.train.guards.incidents import Incident, Incidents
from hasten.train.guards.memory_growth import GrowthWatch, host_bytes, in_use
from hasten.train.guards.oom import free_memory
from hasten.train.guards.watchdog import Watchdog
from hasten.train.loop import Position

STACKS = "stacks"
"""The folder in a run's folder where stacks of hung processes are written."""
_REST = 100


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When the guards speak.

    Attributes:
        collect_frac: Share of the memory limit above which unused memory is collected.
        still_s: Seconds without an update that are always allowed.
        memory_bytes: The memory limit; None asks the machine, 0 for none.
    """

    collect_frac: float = 0.9
    still_s: float = 60.0
    memory_bytes: int | None = None


class Guards:
    """Looks after a run. A context manager.

    Args:
        folder: Where stacks are written when the run stands still.
        incidents: Told what is found.
        position: Where the run stands; changes as it goes on.
        limits: When to speak.
        memory: Gives the bytes this process uses; None asks the system.

    Attributes:
        collections: How often memory was collected because it was scarce.
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
        self._device = memory is None
        self._quiet_until = 0
        self.collections = 0
        self._growth = GrowthWatch(lambda words: self._note("memory", words), memory=self._looked)
        self._watchdog = Watchdog(folder, lambda words: self._note("standstill", words), least_s=limits.still_s)

    def after_update(self) -> None:
        """An update ended."""
        self._watchdog.beat()
        self._growth.after_update()

    def during(self, what: str) -> AbstractContextManager[None]:
        """Something begins that is no update, such as `validation`."""
        return self._watchdog.during(what)

    def __enter__(self) -> Self:
        self._watchdog.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watchdog.__exit__(kind, error, trace)

    def _looked(self) -> int:
        used = self._memory()
        update = self._position().update
        if used > self._scarce and update >= self._quiet_until:
            self._quiet_until = update + _REST
            self.collections += 1
            free_memory()
            now = self._memory()
            if self.collections == 1:
                self._note("memory", f"{used / 2**20:,.0f} MiB are in use, and {now / 2**20:,.0f} after a collection")
            used = now
        return used + (in_use(host=False) if self._device else 0)

    def _note(self, kind: str, words: str) -> None:
        at = self._position()
        self._incidents.note(Incident(kind=kind, update=at.update, epoch=at.epoch, words=words, action="the run goes on"))
