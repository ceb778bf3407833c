"""The process of a queued run: run one pipeline in its own folder, and write into the queue's folder what happened.

    python -m hasten.pipeline.queue_run QUEUE RUN PIPELINE

It loads neither Dagster nor torch, and needs no database, which may be killed meanwhile. It holds a lock, which the system
releases when it dies. A record without an end, and without a lock, is that of a killed run, which is started again.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.core.files import write_atomically
from hasten.pipeline import control
from hasten.pipeline.description import Pipeline, read_pipeline
from hasten.pipeline.folder import out_of, read_json
from hasten.pipeline.lease import Totals
from hasten.pipeline.worker import ATTEMPTS, MACHINE

RUNS = "runs"
INTERRUPTED = 130


def record_of(queue: Path, run: str) -> Path:
    """Return the file with what a run's process wrote."""
    return queue / RUNS / f"{run}.json"


def lock_of(queue: Path, run: str) -> Path:
    """Return the file that a run's process holds locked."""
    return queue / RUNS / f".{run}"


def main(queue: str, run: str, path: str) -> int:
    """Run the pipeline described at `path`, or follow the engine that runs it. Returns 0 when its end is recorded."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    file = record_of(Path(queue), run)
    record: dict[str, Any] = {"launched": time.time(), **read_json(file), "pipeline": path}
    write_atomically(file, json.dumps(record))

    def follow(state: control.State) -> None:
        if "began" not in record and (times := list(_times(pipeline, state, record["launched"]))):
            record["began"] = min(times)
            write_atomically(file, json.dumps(record))

    error = ""
    try:
        pipeline = read_pipeline(Path(path))
        state = control.run(pipeline, follow, Totals.load(Path(queue) / MACHINE))
        follow(state)
        error = "; ".join(_problems(state))
    except KeyboardInterrupt:
        return INTERRUPTED
    except HastenError as problem:
        error = str(problem)
    except Exception as problem:  # noqa: BLE001 - starting it again would not help
        error = f"{type(problem).__name__}: {problem}"
    write_atomically(file, json.dumps({**record, "ended": time.time(), "error": error}))
    return 0


def _times(pipeline: Pipeline, state: control.State, since: float) -> Iterator[float]:
    """Yield when stages got their leases in this run."""
    for name, view in state.views.items():
        before = read_json(out_of(pipeline, name, str(view.now.get("key"))) / ATTEMPTS)
        began = view.now["at"] if state.words(name) == "running" else before.get("began", 0.0)
        if began >= since:
            yield began


def _problems(state: control.State) -> Iterator[str]:
    """Yield why a pipeline is not complete."""
    for name, view in state.views.items():
        if state.words(name) in ("failed", "stopped", "killed"):
            yield str(view.now.get("error") or f"stage {name} was killed").rstrip(".")
        yield from (f"{name}.{one.name}: {'; '.join(one.words)}" for one in state.judged.get(name, []) if not one.passed)
    if not state.complete and all(state.words(name) in ("ended", "to run") for name in state.views):
        yield "its engine was killed again and again"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
