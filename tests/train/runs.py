"""Real runs for tests of their files. Each takes a fraction of a second."""

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
    """Train a run to its end, with several checkpoints: the first at update 4, the last at update 12."""
    pace = Pace(every=4, keep=9)
    train(job or Plain(), plan or Plan(), out, options=RunOptions(pace=pace, say=lambda _: None), **settings)
    return out


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Lock the run's folder, as an active run does."""
    with (run / ".running.0").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def as_if(run: Path, outcome: str) -> Path:
    """Change the outcome in the record of a finished run; remove it for `killed`."""
    path = run / "run.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("outcome", "ended", "updates"))]
    path.write_text("\n".join([*lines, *([f'outcome = "{outcome}"'] if outcome != "killed" else [])]) + "\n")
    return run
