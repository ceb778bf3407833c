"""A window: what was measured over a range of steps of one rank. On disk, a line of `windows.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hasten.monitor.metric import PHASE_PREFIX

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run, or of a part of a resumed run, on one rank.

    Attributes:
        run: Identifies the run: the name of its folder and the time of its start.
        at: Time of the start, in seconds since 1970.
        step: Steps completed before.
        units: Metric name -> unit.
    """

    run: str
    rank: int = 0
    world: int = 1
    host: str = ""
    at: float = 0.0
    step: int = 0
    units: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a line of the file."""
        return {"kind": "start", "schema": SCHEMA, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An event of a run.

    Attributes:
        name: What happened: `validation`, `checkpoint`, `epoch`, or the kind of an incident.
        step: Steps completed when it happened.
        at: When it began, in seconds since 1970.
        seconds: How long it took; 0 for a moment.
    """

    name: str
    step: int
    at: float
    seconds: float = 0.0
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was measured over a range of steps.

    Attributes:
        start: The run, the rank and the units.
        number: Number of the window in this part of the run, counted from 0.
        from_step: Steps completed at its begin.
        to_step: Steps completed at its end. Equal to `from_step` if no step ended in it.
        at: Time of its begin, in seconds since 1970.
        seconds: Its length.
        phases: Phase -> seconds in it, over all its steps; empty if unknown. Phases may sum to less than `seconds`.
        values: Metric name -> value. A metric that could not be read is missing.
        marks: Events in it.
    """

    start: Start
    number: int
    from_step: int
    to_step: int
    at: float
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps that ended in it."""
        return self.to_step - self.from_step

    def metrics(self) -> dict[str, float]:
        """Return the finite values, with the seconds per step of each phase as `phase.NAME`. What a sink usually writes."""
        per_step = {PHASE_PREFIX + name: seconds / self.steps for name, seconds in self.phases.items()} if self.steps else {}
        return {name: value for name, value in {**self.values, **per_step}.items() if math.isfinite(value)}

    def unit(self, name: str) -> str:
        """Return the unit of a metric; `1` if unknown."""
        return "s" if name.startswith(PHASE_PREFIX) else self.start.units.get(name, "1")

    def to_dict(self) -> dict[str, Any]:
        """Return it as a line of the file. Values that are NaN or infinite become the strings `nan`, `inf` and `-inf`."""
        return {
            "kind": "window",
            "number": self.number,
            "from_step": self.from_step,
            "to_step": self.to_step,
            "at": round(self.at, 3),
            "seconds": round(self.seconds, 6),
            "phases": {name: round(seconds, 6) for name, seconds in self.phases.items()},
            "values": {name: value if math.isfinite(value) else str(value) for name, value in self.values.items()},
            "marks": [asdict(mark) for mark in self.marks],
        }

    @classmethod
    def from_dict(cls, line: Mapping[str, Any], start: Start) -> Window:
        """Read a line of the file. Raises AttributeError, KeyError, TypeError or ValueError if it is not a window."""
        return cls(
            start=start,
            number=line["number"],
            from_step=int(line["from_step"]),
            to_step=int(line["to_step"]),
            at=float(line["at"]),
            seconds=float(line["seconds"]),
            phases={name: float(seconds) for name, seconds in line["phases"].items()},
            values={name: float(value) for name, value in line["values"].items()},
            marks=tuple(Mark(**mark) for mark in line["marks"]),
        )
