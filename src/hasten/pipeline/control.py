"""Start, follow and stop the engine of a pipeline. One engine at a time works on a pipeline; a second command follows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from hasten.core.errors import HastenError, MachineError
from hasten.core.lock import hold, is_held
from hasten.pipeline.description import Pipeline, PipelineError
from hasten.pipeline.folder import (
    ENGINE_ERROR,
    ENGINE_LOCK,
    HISTORY,
    INCOMPLETE,
    View,
    check_disk,
    out_of,
    read_json,
    stage_folder,
    view_all,
)
from hasten.pipeline.judge import Judged, judge
from hasten.pipeline.lease import Need, Totals, need_of, read_totals
from hasten.pipeline.predict import Overhead, Prediction, Task, predict
from hasten.pipeline.worker import MACHINE, known_memory

ENGINE, ENGINE_LOG = "engine.json", "logs/engine.log"
_POLL_S = 0.25
_RESTARTS = 3
"""How often what was killed is resumed while a command follows it."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A pipeline at this moment.

    Attributes:
        views: Name -> stage.
        judged: Name of a stage that has ended -> what its gates decided.
        running: Whether an engine works on it.
    """

    views: Mapping[str, View]
    judged: Mapping[str, list[Judged]]
    running: bool

    def words(self, name: str) -> str:
        """Return the state of a stage in one word."""
        view = self.views[name]
        if view.done:
            return "ended" if all(one.passed for one in self.judged[name]) else "refused"
        if view.running:
            return "running" if view.now.get("state") == "running" else "waiting"
        if any(self.words(other) in ("refused", "failed", "blocked") for other in view.stage.needs):
            return "blocked"
        if not view.key or view.now.get("key") != view.key:
            return "to run"
        state = view.now.get("state")
        return {"failed": "failed", "stopped": "stopped", "ended": "to run", None: "to run"}.get(state, "killed")

    @property
    def selected(self) -> list[str]:
        """The stages that have to run."""
        return [name for name in self.views if self.words(name) not in ("ended", "refused", "blocked")]

    def can_go_on(self, name: str) -> bool:
        """Whether a stage is half done, or could start: something was killed before it had ended."""
        words = self.words(name)
        ready = all(self.words(other) == "ended" for other in self.views[name].stage.needs)
        return words in ("running", "waiting", "killed") or (words == "to run" and ready)

    @property
    def complete(self) -> bool:
        """Whether every stage has ended and passed."""
        return all(self.words(name) == "ended" for name in self.views)


def state_of(pipeline: Pipeline, *, save: bool = False) -> State:
    """Return the state of a pipeline. `save`: keep the hashes of files that were read.

    Raises:
        CorruptError: The audit log was changed.
    """
    views = view_all(pipeline, save=save)
    judged = {
        name: judge(pipeline, view.stage, out_of(pipeline, name, view.key)) for name, view in views.items() if view.done
    }
    return State(views=views, judged=judged, running=is_held(pipeline.work / ENGINE_LOCK))


def needs_of(pipeline: Pipeline, totals: Totals) -> dict[str, Need]:
    """Return what each stage leases.

    Raises:
        PipelineError: A stage needs more than the machine has.
    """
    return {name: need_of(stage, totals, known_memory(pipeline, stage)) for name, stage in pipeline.stages.items()}


def predicted(pipeline: Pipeline, state: State, totals: Totals, selected: Sequence[str]) -> Prediction:
    """Predict the time of these stages from their last measured times."""
    needs, tasks = needs_of(pipeline, totals), []
    for name in selected:
        before = tuple(one for one in pipeline.stages[name].needs if one in selected)
        tasks.append(Task(name=name, needs=before, need=needs[name], seconds=state.views[name].last.get("seconds")))
    return predict(tasks, totals, overhead(pipeline))


def overhead(pipeline: Pipeline) -> Overhead:
    """Return what Dagster added to the start of a run and to each stage, in earlier runs here; zero if there were none."""
    runs = [run for run in history(pipeline) if "start_s" in run]
    names = ("start_s", "stage_s", "end_s") if runs else ()
    return Overhead(runs=len(runs), **{name: median(run[name] for run in runs) for name in names})


def history(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return the runs that have ended, the newest last."""
    try:
        lines = (pipeline.work / HISTORY).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def run(pipeline: Pipeline, follow: Callable[[State], None], totals: Totals | None = None) -> State:
    """Run what has to run, until it has ended; or follow the engine that already does.

    `follow` is called a few times a second with the present state. `totals` are read if not given, which loads torch.

    Raises:
        HastenError: The engine cannot work: says why.
        KeyboardInterrupt: All stages were asked to save and have ended.
    """
    totals = totals or read_totals()
    needs_of(pipeline, totals)
    try:
        totals.save(pipeline.work / MACHINE)
        for _ in range(_RESTARTS + 1):
            state = state_of(pipeline, save=True)
            if not state.selected and not state.running:
                return state
            _engine(pipeline, state, totals, state.selected, follow)
            after = state_of(pipeline)
            if not any(after.can_go_on(name) for name in pipeline.stages):
                return after
    except KeyboardInterrupt:
        stop(pipeline, follow)
        raise
    except OSError as error:
        raise MachineError(
            f"{error.filename or pipeline.work}: {error.strerror}. Free some space, and run again."
        ) from error
    return state_of(pipeline)


def _engine(
    pipeline: Pipeline, state: State, totals: Totals, selected: Sequence[str], follow: Callable[[State], None]
) -> None:
    """Run an engine, or follow the one that runs, until it has ended or was killed."""
    lock = hold(pipeline.work / ENGINE_LOCK, wait=False, inherited=True)
    process: subprocess.Popen[bytes] | None = None
    began = time.time()
    if lock is not None:
        predicted_s = predicted(pipeline, state, totals, selected)
        process = _start(pipeline, selected, lock)
    while is_held(pipeline.work / ENGINE_LOCK) if process is None else process.poll() is None:
        follow(state_of(pipeline))
        time.sleep(_POLL_S)
    after = state_of(pipeline, save=True)
    follow(after)
    if process is None:
        return
    if process.returncode > 0:
        check_disk(pipeline)
    if (error := pipeline.work / ENGINE_ERROR).exists():
        raise HastenError(error.read_text(encoding="utf-8"))
    if process.returncode > 0 and process.returncode != INCOMPLETE:
        raise PipelineError(f"Dagster ended with {process.returncode}. Its output is in {pipeline.work / ENGINE_LOG}.")
    _remember(pipeline, after, selected, predicted_s, began)


def _start(pipeline: Pipeline, selected: Sequence[str], lock: int) -> subprocess.Popen[bytes]:
    """Start the engine in a session of its own, so that it outlives a closed terminal. It alone then holds the lock."""
    log = pipeline.work / ENGINE_LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    (pipeline.work / ENGINE_ERROR).unlink(missing_ok=True)
    starts = "import sys; from hasten.pipeline.engine import main; sys.exit(main(*sys.argv[1:]))"
    command = [sys.executable, "-c", starts, str(pipeline.path), *selected]
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - this package
                command, cwd=pipeline.root, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                pass_fds=(lock,), start_new_session=True,
            )  # fmt: skip
    finally:
        os.close(lock)
    (pipeline.work / ENGINE).write_text(json.dumps({"pid": process.pid, "stages": list(selected)}), encoding="utf-8")
    return process


def stop(pipeline: Pipeline, follow: Callable[[State], None] = lambda _: None) -> None:
    """Ask the engine and all stages to save and end, and wait until they have."""
    engine = read_json(pipeline.work / ENGINE).get("pid")
    state = state_of(pipeline)
    if state.running and isinstance(engine, int):
        _signal(engine)
    while state.running or any(view.running for view in state.views.values()):
        for name, view in state.views.items():
            if view.running and isinstance(pid := read_json(stage_folder(pipeline, name) / "now.json").get("pid"), int):
                _signal(pid)
        follow(state)
        time.sleep(1.0)
        state = state_of(pipeline)


def _signal(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)


def _remember(pipeline: Pipeline, state: State, selected: Sequence[str], prediction: Prediction, began: float) -> None:
    """Record how long a run took, beside what was predicted, and what was between its stages."""
    ended = time.time()
    done = {name: state.views[name].done for name in selected if state.views[name].done}
    ran = {name: one for name, one in done.items() if one["began"] >= began}
    facts: dict[str, Any] = {
        "began": began, "seconds": ended - began, "complete": len(done) == len(selected),
        "predicted_s": prediction.seconds, "unknown": list(prediction.unknown),
        "stages": {name: {key: one[key] for key in ("began", "ended", "seconds", "waited_s")} for name, one in ran.items()},
    }  # fmt: skip
    if len(ran) == len(selected):
        gaps = [
            one["began"] - one["waited_s"] - max(ran[need]["ended"] for need in state.views[name].stage.needs if need in ran)
            for name, one in ran.items()
            if any(need in ran for need in state.views[name].stage.needs)
        ]
        facts["start_s"] = min(one["began"] for one in ran.values()) - began
        facts["end_s"] = ended - max(one["ended"] for one in ran.values())
        facts["stage_s"] = max(median(gaps), 0.0) if gaps else facts["start_s"]
    with (pipeline.work / HISTORY).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
