"""What went wrong in a run, and what was done about it: told, and kept as lines of JSON beside the metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hasten.core.errors import MachineError

INCIDENTS = "incidents.jsonl"
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One of them.

    Attributes:
        kind: `not finite`, `spike`, `out of memory`, `memory`, `standstill`.
        update: The update it happened in, counted from 0.
        epoch: The epoch, counted from 0.
        words: What was seen.
        action: What was done.
        samples: Indices of the samples of that update, over all ranks; empty where the dataset has none.
    """

    kind: str
    update: int
    epoch: int
    words: str
    action: str
    samples: tuple[int, ...] = ()


class Incidents:
    """Tells and keeps incidents.

    Args:
        path: The file, in a folder that exists; None keeps nothing (a rank that does not lead).
        say: Told each of them.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say

    def note(self, incident: Incident) -> None:
        """Tell one, and keep it.

        Raises:
            MachineError: It cannot be written.
        """
        self._say(f"update {incident.update}: {incident.words}{shown_samples(incident.samples)}; {incident.action}")
        if self._path is None:
            return
        line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(incident)})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise MachineError(f"{self._path} cannot be written ({error.strerror}): make room there.") from error


def shown_samples(samples: Sequence[int]) -> str:
    """A few of the indices, in brackets."""
    if not samples:
        return ""
    words = ", ".join(map(str, samples[:_SHOWN]))
    return f" (samples {words}{f' and {len(samples) - _SHOWN} more' if len(samples) > _SHOWN else ''})"
