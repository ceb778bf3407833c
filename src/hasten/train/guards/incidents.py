"""Report incidents of a run with the action taken, and record them as JSON lines next to the metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hasten.core.errors import MachineError

INCIDENTS = "incidents.jsonl"
_SHOWN = 8
"""Number of sample indices shown in a message."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """An incident of a run.

    Attributes:
        kind: `not finite`, `spike`, `out of memory`, `memory` or `standstill`.
        update: The update in which it happened, counted from 0.
        epoch: The epoch, counted from 0.
        words: What happened.
        action: The action taken.
        samples: Indices of the samples of that update, over all ranks; empty for an iterable dataset.
    """

    kind: str
    update: int
    epoch: int
    words: str
    action: str
    samples: tuple[int, ...] = ()

    def text(self) -> str:
        """Return what happened and what was done."""
        samples = "" if self.kind == "spike" else shown_samples(self.samples)  # the file has them
        return f"{self.words}{samples}; {self.action}"


class Incidents:
    """Reports and records incidents.

    Args:
        path: The file, in an existing folder; None records nothing (ranks other than 0).
        say: Called with a message for each incident.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._hear: Callable[[Incident], None] | None = None

    @contextmanager
    def heard_by(self, hear: Callable[[Incident], None]) -> Iterator[None]:
        """Also call `hear` with each incident while the block runs, on the thread that noted it. It must be fast."""
        self._hear = hear
        try:
            yield
        finally:
            self._hear = None  # it refers to the loop, which refers to this: the loop would not be freed at once

    def note(self, incident: Incident) -> None:
        """Report and record an incident.

        Raises:
            MachineError: The file cannot be written.
        """
        self._say(f"update {incident.update}: {incident.text()}")
        if (hear := self._hear) is not None:
            hear(incident)
        if self._path is None:
            return
        line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(incident)})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise MachineError(f"{self._path} cannot be written ({error.strerror}): free some space.") from error


def shown_samples(samples: Sequence[int]) -> str:
    """Return some of the indices in brackets; empty if there are none."""
    if not samples:
        return ""
    listed = ", ".join(map(str, samples[:_SHOWN]))
    return f" (samples {listed}{f' and {len(samples) - _SHOWN} more' if len(samples) > _SHOWN else ''})"
