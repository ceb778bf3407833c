"""Real runs for tests of what runs leave behind; each takes a fraction of a second."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hasten.core.plan import Plan
from hasten.train.checkpoints.saver import Pace
from hasten.train.run import RunOptions, train
from tests.train.jobs import Plain


def trained(out: Path, job: Any = None, *, plan: Plan | None = None, **settings: Any) -> Path:
    """A finished run with several checkpoints, the first at update 4 and the last at its end, 12."""
    pace = Pace(every=4, keep=9)
    train(job or Plain(), plan or Plan(), out, options=RunOptions(pace=pace, say=lambda _: None), **settings)
    return out


@contextmanager
def held(run: Path) -> Iterator[None]:
    """The run's folder as a run at work holds it."""
    with (run / ".running.0").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def as_if(run: Path, outcome: str) -> Path:
    """Have the record of a finished run say something else; nothing for `killed`."""
    path = run / "run.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("outcome", "ended", "updates"))]
    path.write_text("\n".join([*lines, *([f'outcome = "{outcome}"'] if outcome != "killed" else [])]) + "\n")
    return run
