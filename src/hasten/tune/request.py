"""What a user asks of a tuning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from hasten.core.errors import PlanError
from hasten.optimizations import catalogue
from hasten.tune.objective import TIME, Objective


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What to tune, and for how long.

    Attributes:
        target: The job.
        out: Folder for plan, evidence and report.
        budget_s: Time budget in seconds; the tuning exceeds it by at most 15 %.
        seed: Overrides the job's seed for the experiment.
        resume: Continue from the evidence in `out`.
        objective: What to improve.
        ranks: Number of processes that train together in each trial.
        command: The script to tune instead of a job: the script, or `-m` and a module, followed by its arguments.
        only: Names of the techniques to try; empty tries all.
        without: Names of techniques to exclude.

    Raises:
        PlanError: `only` or `without` names an unknown technique.
    """

    target: str
    out: Path
    budget_s: float = 300.0
    seed: int | None = None
    resume: bool = False
    objective: Objective = TIME
    ranks: int = 1
    command: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_names((*self.only, *self.without))

    def allows(self, name: str) -> bool:
        """Return whether a technique may be tried."""
        return (name in self.only or not self.only) and name not in self.without

    @property
    def folder(self) -> str:
        """The output folder, quoted for a command line."""
        return shlex.quote(str(self.out))

    @property
    def chosen_flags(self) -> str:
        """The command-line flags that select techniques, each with a leading space."""
        flags = [f" --only {name}" for name in self.only] + [f" --without {name}" for name in self.without]
        return "".join(flags)


def _check_names(names: Sequence[str]) -> None:
    known = list(catalogue())
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "`hasten doctor --catalogue` lists all techniques."
            raise PlanError(f"there is no technique {name!r}. {hint}")
