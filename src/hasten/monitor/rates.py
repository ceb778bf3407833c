"""What several samplers share: changes of counters, and the files of Linux."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from hasten.core.errors import MachineError

PROC = Path("/proc")


class Changes:
    """How much counters have changed since the last reading."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._before: Mapping[str, float] = {}
        self._at = clock()

    def since(self, counters: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Return the seconds since the last reading, and the change of each counter that was read then."""
        before, self._before, began = self._before, dict(counters), self._at
        self._at = self._clock()
        changes = {name: max(count - before[name], 0.0) for name, count in counters.items() if name in before}
        return max(self._at - began, 1e-9), changes

    def rates(self, counters: Mapping[str, float]) -> dict[str, float]:
        """Return the change of each counter per second."""
        seconds, changes = self.since(counters)
        return {name: change / seconds for name, change in changes.items()}


def needed(path: Path) -> Path:
    """Return a file that a sampler needs. Raises MachineError if it cannot be read."""
    try:
        path.read_bytes()
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}.") from error
    return path
