"""Readers of releases load all the time, while another process changes the releases and is killed.

All numbers of a model are the same, so a reader notices parts of two models. Three readers choose, open and load through a
link: first without changes; then while models are put on trial, given to more readers and to all, rolled back by hand and
by a gate, and while a backup is restored and the link is replaced. At last, the process that does this is killed with
SIGKILL at random moments.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from hasten.core.files import write_atomically
from hasten.core.gates import Share
from hasten.core.job import Job
from hasten.core.plan import Plan
from hasten.pipeline.backup import backup, restore
from hasten.pipeline.model_folder import MODEL
from hasten.pipeline.release import GATES, HISTORY, MODELS, Releases
from hasten.train.checkpoints.saver import Pace
from hasten.train.run import RunOptions, train

READERS, SHARES = 3, (0.1, 0.3, 0.7)
SECONDS = {"quiet": 20.0, "changes": 60.0, "kills": 90.0}
MEAN_S = 0.8
"""Mean time between kills."""
CONFIDENCE = 0.999
"""Of the interval of a share: three are judged."""
KINDS = ("trial", "raise", "all", "withdraw", "gate", "rollback", "restore")
GOOD, BAD = {"loss": 0.5}, {"loss": 2.0}
LINK, LOG, STOP, METRICS = "serving", "changes.jsonl", "stop", "metrics"


class Constant(Job):
    """A model whose numbers are all the same: 4 MB."""

    batch_size = 4
    value = 0.0

    def model(self) -> torch.nn.Module:
        """Return the model."""
        layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
        for parameter in layers.parameters():
            torch.nn.init.constant_(parameter, self.value)
        return layers

    def train_data(self) -> torch.utils.data.Dataset[Any]:
        """Return one batch."""
        return torch.utils.data.TensorDataset(torch.zeros(4, 512))

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return one that changes nothing."""
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Return a loss."""
        return torch.Tensor(model(batch[0]).mean())


def run(found: Mapping[str, Any]) -> dict[str, Any]:
    """Measure, and judge."""
    del found
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        result = measure(Path(name), SECONDS)
    outside = [one["asked"] for one in result["shares"] if not one["low"] <= one["asked"] <= one["high"]]
    rows = (
        ("failed loads", 0, len(result["failed"])),
        ("loads of inconsistent weights", 0, result["inconsistent"]),
        ("shares outside their interval", 0, len(outside)),
        ("kills", 50, result["kills"]),
        ("kinds of changes", len(KINDS), len(result["changes"])),
    )
    goals = {name: {"goal": goal, "seen": seen, "reached": seen >= goal if goal else seen == 0} for name, goal, seen in rows}
    return {**result, "goals": goals}


def measure(folder: Path, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Load from releases in an empty folder while they are changed.

    Args:
        folder: The folder.
        seconds: How long each phase takes.
    """
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent, and would wait for them
    models = _prepare(folder)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    readers = [context.Process(target=read, args=(folder, number, results)) for number in range(READERS)]
    ends, kills, caught, order = dict[str, float](), 0, 0, random.Random(0)
    for reader in readers:
        reader.start()
    try:
        while sum(1 for _ in folder.glob("ready-*")) < READERS and all(one.is_alive() for one in readers):
            time.sleep(0.05)
        began = time.time()
        time.sleep(seconds["quiet"])
        ends["quiet"] = time.time()
        changer = context.Process(target=change, args=(folder, models, 0, ends["quiet"] + seconds["changes"]))
        changer.start()
        _join(changer)
        ends["changes"] = time.time()
        until = ends["changes"] + seconds["kills"]
        while time.time() < until:
            changer = context.Process(target=change, args=(folder, models, kills + 1, until + 60))
            changer.start()
            changer.join(0.3 + order.expovariate(1 / MEAN_S))
            changer.kill()
            _join(changer)
            kills += 1
            served = Releases((folder / LINK).resolve())
            caught += _half_done(folder, served)
            served.verify()
        ends["kills"] = time.time()
    finally:
        (folder / STOP).touch()
    found = [results.get() for _ in readers]
    return {"kills": kills, "kills_within_a_change": caught, **_summary(found, _changes(folder), began, ends)}


def _prepare(folder: Path) -> dict[str, Path]:
    """Train three models, and release the first. Returns the run of each model."""
    write_atomically(folder / METRICS / "metrics.json", json.dumps(GOOD))
    names, runs = Releases(folder / "names"), list[Path]()
    for number in (1, 2, 3):
        job = Constant()
        job.value = float(number)
        options = RunOptions(pace=Pace(every=1), say=lambda _: None)
        train(job, Plan(), folder / f"run-{number}", options=options)
        runs.append(folder / f"run-{number}")
    models = {names.promote(run, metrics=folder / METRICS).used: run for run in runs}
    first = Releases(folder / "first")
    write_atomically(first.folder / GATES, '[loss]\nmetric = "loss"\nthreshold = 1\nat_most = true\nexact = true\n')
    first.promote(runs[0], metrics=folder / METRICS)
    (folder / LINK).symlink_to(first.folder)
    return models


def read(folder: Path, number: int, results: Any) -> None:
    """Load until there is a file `stop`, as a server would. Gives what was seen."""
    loads, failed, seen = list[tuple[float, float]](), list[str](), dict[int, float]()
    trials: Counter[float] = Counter()
    canary: Counter[float] = Counter()
    numbers, mixed = dict[str, float](), 0
    releases = Releases(folder / LINK)
    (folder / f"ready-{number}").touch()
    while not (folder / STOP).exists():
        began = time.time()
        try:
            before = releases.pointer
            chosen = releases.choose(f"user-{number}-{len(loads)}")
            ends = {end.item() for tensor in load_file(chosen / MODEL).values() for end in tensor.aminmax()}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed load
            failed.append(repr(error))
            continue
        loads.append((began, time.time() - began))
        mixed += ends != {numbers.setdefault(chosen.name, min(ends))}
        seen.setdefault(before.serial, began)
        if before.share and releases.pointer == before:  # so the choice was made at this share
            trials[before.share] += 1
            canary[before.share] += chosen.name == before.waiting
    facts = {"loads": loads, "failed": failed, "mixed": mixed, "numbers": numbers, "seen": seen}
    results.put({**facts, "trials": trials, "canary": canary})


def change(folder: Path, models: Mapping[str, Path], seed: int, until: float) -> None:
    """Change releases until a time, and in all ways, each time in the way that was used least so far."""
    draw = random.Random(seed)
    used: Counter[str] = Counter(one["kind"] for one in _changes(folder))
    while time.time() < until or len(used) < len(KINDS):
        releases = Releases((folder / LINK).resolve())
        pointer = releases.pointer
        higher = [share for share in SHARES if share > pointer.share]
        possible = ["withdraw", "gate", "all", *(["raise"] if higher else [])]
        if not pointer.share:
            possible = ["trial", "all", "restore", *(["rollback"] if pointer.waiting else [])]
        kind = min(possible, key=lambda kind: (used[kind], draw.random()))
        run = draw.choice([run for name, run in models.items() if name != pointer.used])
        began = time.time()
        if kind in ("withdraw", "rollback"):
            releases.rollback("a test")
        elif kind == "gate":
            if not releases.judge(pointer.waiting, BAD):
                raise RuntimeError("the gate was passed")
        elif kind == "restore":
            backup(releases, str(folder / "backup"))
            restored = restore(str(folder / "backup"), folder / f"restored-{time.time_ns()}")
            turned = folder / f"turned-{time.time_ns()}"
            turned.symlink_to(restored.folder)
            turned.replace(folder / LINK)
        else:
            share = None if kind == "all" else higher[0]
            releases.promote(run if not pointer.share else "", share=share, metrics=folder / METRICS)
        used[kind] += 1
        serial = Releases(folder / LINK).pointer.serial
        line = json.dumps({"kind": kind, "serial": serial, "began": began, "ended": time.time()})
        with (folder / LOG).open("a") as file:
            file.write(f"{line}\n")
        time.sleep(draw.uniform(0.1, 0.4))


def _changes(folder: Path) -> list[dict[str, Any]]:
    path = folder / LOG
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _join(changer: Any) -> None:
    changer.join()
    if changer.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the process that changes releases failed: {changer.exitcode}")


def _half_done(folder: Path, served: Releases) -> bool:
    """Whether a kill left a change half done: a model, a file or a restored folder under another name, or an entry ahead."""
    left = [*served.folder.glob(f"{MODELS}/.new-*"), *served.folder.glob(".*.part"), *folder.glob("backup/**/*.part")]
    hidden = folder.glob(".restored-*")
    started = [path for path in hidden if not (path / "counted").exists()]
    for path in started:
        (path / "counted").touch()
    entries = len((served.folder / HISTORY).read_bytes().splitlines())
    return bool(left or started) or entries > served.pointer.serial


def _summary(
    found: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]], began: float, ends: Mapping[str, float]
) -> dict[str, Any]:
    loads = sorted(load for one in found for load in one["loads"] if load[0] >= began)
    times = dict[str, list[float]]()
    for at, seconds in loads:
        phase = next((phase for phase, end in ends.items() if at < end), "kills")
        times.setdefault(phase, []).append(seconds * 1e3)
    shares = []
    for asked in SHARES:
        counted = Share(sum(one["canary"][asked] for one in found), sum(one["trials"][asked] for one in found))
        low, high = counted.interval(CONFIDENCE)
        shares.append({"asked": asked, "loads": counted.items, "seen": counted.value, "low": low, "high": high})
    names = {(name, number) for one in found for name, number in one["numbers"].items()}
    first = dict[int, float]()
    for one in found:
        for serial, at in one["seen"].items():
            first[serial] = min(at, first.get(serial, at))
    promoted = [one for one in changes if one["kind"] in ("trial", "all") and one["serial"] in first]
    return {
        "readers": len(found), "cores": len(os.sched_getaffinity(0)),
        "seconds": {phase: end - start for (phase, end), start in zip(ends.items(), [began, *ends.values()], strict=False)},
        "loads": {phase: len(some) for phase, some in times.items()},
        "failed": [error for one in found for error in one["failed"]],
        "inconsistent": sum(one["mixed"] for one in found) + len(names) - len(dict(names)),
        "changes": dict(Counter(one["kind"] for one in changes)), "shares": shares,
        "promote_ms": _spread([(one["ended"] - one["began"]) * 1e3 for one in promoted]),
        "seen_ms": _spread([(first[one["serial"]] - one["began"]) * 1e3 for one in promoted]),
        "load_ms": {phase: _spread(some) for phase, some in times.items()},
    }  # fmt: skip


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "p99": float(np.percentile(values, 99)), "largest": max(values)}
