"""Kill processes of a pipeline at random moments, and compare what its stages give with an undisturbed run.

A pipeline of a data step, three jobs and a merge is run. After random times one of its processes is killed with SIGKILL:
the command, the engine, a step of Dagster, a worker, a training, or all of them. If the command was killed or gave up, it is
started again, until the pipeline is complete. The weights of every stage must be those of an undisturbed run, bit for bit,
and the record of a stage that had ended must not have been written again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.record import ROOT
from hasten.pipeline.control import state_of
from hasten.pipeline.description import Pipeline, read_pipeline

KILLS = int(os.environ.get("HASTEN_KILLS", "100"))
MEAN_S = 5.0
"""Mean time between kills. A process with torch needs about half of it to start."""
KINDS = {
    "command": "hasten -q pipeline run", "engine": "hasten.pipeline.engine import main",
    "step": "multiprocessing.forkserver", "worker": "-m hasten.pipeline.worker", "training": "-m hasten run",
}  # fmt: skip
"""Kind of process -> words of its command line."""
MARK = "HASTEN_LEASES"


def run(found: Mapping[str, Any]) -> dict[str, Any]:
    """Kill until there were enough kills."""
    del found
    order = random.Random(0)
    kills: Counter[str] = Counter()
    wrong = again = rounds = 0
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        folder = Path(name)
        whole = _fresh(folder, "whole")
        began = time.monotonic()
        _attempt(whole, folder, order, 0)
        whole_s = time.monotonic() - began
        want = weights(whole)
        while kills.total() < KILLS:
            pipeline = _fresh(folder, f"round{rounds}")
            ended: dict[str, float] = {}
            while True:
                kills.update(_attempt(pipeline, folder, order, KILLS - kills.total()))
                views = state_of(pipeline).views
                again += sum(views[stage].done.get("ended") != when for stage, when in ended.items())
                ended = {stage: view.done["ended"] for stage, view in views.items() if view.done}
                if len(ended) == len(views):
                    break
            rounds += 1
            wrong += weights(pipeline) != want
            print(
                f"{kills.total()} kills, {rounds} rounds, {wrong} with other weights, {again} stages run again", flush=True
            )
            shutil.rmtree(pipeline.root)
    return {
        "kills": dict(kills),
        "rounds": rounds,
        "wrong": wrong,
        "run_again": again,
        "whole_s": whole_s,
        "goals": {
            "kills": {"goal": 100, "seen": kills.total(), "reached": kills.total() >= 100},
            "rounds with other weights": {"goal": 0, "seen": wrong, "reached": wrong == 0},
            "stages run again without need": {"goal": 0, "seen": again, "reached": again == 0},
        },
    }


def weights(pipeline: Pipeline) -> dict[str, bytes]:
    """Return what each stage gave."""
    views = state_of(pipeline).views
    return {name: str(view.done.get("gave")).encode() for name, view in views.items()}


def _fresh(folder: Path, name: str) -> Pipeline:
    return read_pipeline(Path(shutil.copytree(Path(__file__).parent / "stages", folder / name)))


def _attempt(pipeline: Pipeline, folder: Path, order: random.Random, most: int) -> list[str]:
    """Start the command, and kill processes until it ends, at most so many times. Returns what was killed."""
    environ = {**os.environ, MARK: str(folder / "leases"), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "hasten", "-q", "pipeline", "run", str(pipeline.root)]
    killed: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ, text=True) as process:
        while process.poll() is None and len(killed) < most:
            with suppress(subprocess.TimeoutExpired):
                process.wait(order.expovariate(1 / MEAN_S))
                break
            kind, pids = _victims(folder, order)
            killed += [kind] if pids else []
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=600)
    if process.returncode not in (0, -signal.SIGKILL):
        print(f"exit status {process.returncode}: {errors.strip()[-500:]}", flush=True)
    return killed


def _victims(folder: Path, order: random.Random) -> tuple[str, list[int]]:
    """Return a kind of process and one of this kind, or all processes of the pipeline."""
    found: dict[str, list[int]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder / "leases"):
                line = " ".join(process.cmdline())
                kind = next((kind for kind, words in KINDS.items() if words in line), "other")
                found.setdefault(kind, []).append(process.pid)
    if order.random() < 0.15:
        return "everything", [pid for pids in found.values() for pid in pids]
    kind = order.choice(sorted(set(found) - {"other"})) if set(found) - {"other"} else "other"
    return kind, [order.choice(found[kind])] if kind in found else []
