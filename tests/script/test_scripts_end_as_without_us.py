"""Whole scripts end as without Hasten: with the same output, files and weights, as far as each technique's class allows.

Every form of loop is combined with changes at an epoch in every way, with 0 to 2 workers that end with the epoch or persist.
Scripts run watched, measured, and under plans that together contain every technique available to scripts. Any difference
is a fault.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.core.card import Numerics
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.tune.trials.trial import Trial, TrialSetting
from tests.script import whole_scripts
from tests.script.test_apart import needs_mounts, tree
from tests.script.whole_scripts import ROUTES, SHAPES, Job, Mode

Settings = dict[str, dict[str, Any]]
OF_EVERY_SCRIPT: Settings = {
    "tensor_text": {},
    "garbage_collection": {"mode": "epoch"},
    "background_checkpoint": {},
    "zero_grad_to_none": {},
    "pinned_memory": {},
}
EXACT: dict[str, Settings] = {
    "cache": {**OF_EVERY_SCRIPT, "batched_reading": {}, "sample_cache": {}, "activation_checkpointing": {}},
    "store": {**OF_EVERY_SCRIPT, "sample_store": {"max_gib": 0.1}},
    "workers": {**OF_EVERY_SCRIPT, "loader_workers": {"num_workers": 2, "persistent": True}},
}
"""Plans of techniques that change no bit. `allocator` needs a separate process, see below."""
ROUNDED: Settings = {
    "fused_optimizer": {},
    "flush_denormals": {},
    "cudnn_benchmark": {},
    "matmul_precision": {},
    "cpu_threads": {},
    "trim_padding": {},
    "channels_last": {},
    "attention_backend": {},
}
ALONE_IN_A_PLAN: dict[str, Settings] = {
    "channels": {"channels_last_3d": {}},
    "foreach": {"foreach_optimizer": {}},
    "compile": {"compile": {}},
    "masks": {"dropout_masks": {}},
    "bfloat16": {"precision": {}},
    "allocator": {"allocator": {}},
    "graphs": {"cuda_graphs": {}},
}
ON_DATA = {"sample_cache", "sample_store", "loader_workers"}
REFUSED = {"stream": ON_DATA, "sampler of its own": {"loader_workers"}}
"""Form of script -> data techniques that it refuses: samples without an index, or an order that cannot be predicted."""
TOLERANCE = {"rounded": 1e-4, "channels": 1e-4, "foreach": 1e-4, "compile": 1e-4, "masks": 1e-4, "bfloat16": 0.1}
"""Allowed deviations of a loss and of a weight under plans that round."""
WORKERS = (["0", "-"], ["1", "-"], ["2", "-"], ["2", "kept"])
OBSERVE = {"mode": "observe", "updates": 50, "seconds": 0.0}
BLIND = """
from hasten.script.data.guard import PureLoad
PureLoad.begin_epoch = lambda _: None
PureLoad._chosen = lambda *_: []
"""
"""An injected fault: cached samples are not compared."""


@dataclass(frozen=True)
class Ended:
    """The outcome of a run."""

    job: Job

    def told(self, name: str) -> str:
        """Return a file that the run left next to its folder."""
        return Path(self.job.told, name).read_text(encoding="utf-8")

    @property
    def applied(self) -> dict[str, Any]:
        """Return the report of a plan."""
        found: dict[str, Any] = json.loads(self.told("applied-0.json"))
        return found

    def files(self) -> dict[str, bytes | None]:
        """Return every path of the project with its content."""
        folder = Path(self.job.folder)
        return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


class Runs:
    """Runs of scripts in one process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, list[Job]()

    def add(
        self,
        shape: str,
        route: str,
        mode: Mode,
        arguments: list[str],
        config: Mapping[str, Any] | None = None,
        first: str = "",
    ) -> Ended:
        """Add a run. Return its outcome, to be read after the run."""
        here = self.folder / str(len(self.jobs))
        job = Job(str(here / "project"), str(here / "told"), mode, arguments, dict(config or {}), first)
        job.write(shape, route)
        self.jobs.append(job)
        return Ended(job)

    def start(self) -> None:
        """Execute all runs."""
        path = self.folder / "jobs.json"
        path.write_text(json.dumps([job.to_dict() for job in self.jobs]), encoding="utf-8")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, whole_scripts.__file__, path], env=environment, check=True, timeout=200)


def difference(alone: Ended, ours: Ended) -> str:
    """Describe the difference between two outcomes; "" if there is none."""
    for name in ("code.txt", "err.txt", "out.txt"):
        if alone.told(name) != ours.told(name):
            return f"{name}:\n{alone.told(name)[-500:]}\nother\n{ours.told(name)[-500:]}"
    one, other = alone.files(), ours.files()
    return ", ".join(name for name in one | other if one.get(name) != other.get(name))


def far(alone: Ended, ours: Ended, tolerance: float) -> str:
    """Describe a difference larger than rounding; "" if there is none."""
    if alone.told("code.txt") + alone.told("err.txt") != ours.told("code.txt") + ours.told("err.txt"):
        return ours.told("err.txt")
    one, other = alone.files(), ours.files()
    if one.keys() != other.keys():
        return f"files {one.keys() ^ other.keys()}"
    for lines in zip(alone.told("out.txt").splitlines(), ours.told("out.txt").splitlines(), strict=True):
        words = [line.split() for line in lines]
        if words[0][0] == "weights":
            continue
        for first, second in zip(*words, strict=True):
            if first != second and not math.isclose(float(first), float(second), abs_tol=tolerance):
                return " / ".join(lines)
    with np.load(Path(alone.job.folder, "run/weights.npz")) as ws, np.load(Path(ours.job.folder, "run/weights.npz")) as vs:
        off = max(float(np.abs(ws[name] - vs[name]).max()) for name in ws)
    return f"weights are off by {off}" if off > tolerance else ""


def assert_measured_leaves_nothing(ended: Ended, before: dict[str, bytes | None]) -> None:
    """Assert that a measured run observed steps and left the project unchanged."""
    assert (ended.told("code.txt"), ended.told("err.txt"), ended.told("left.txt")) == ("0", "", "")
    assert json.loads(ended.told("seen-0.json"))["steps"] == 6
    assert ended.files() == before


def test_every_technique_that_scripts_allow_is_tried() -> None:
    tried = {name for plan in (*EXACT.values(), ROUNDED, *ALONE_IN_A_PLAN.values()) for name in plan}
    assert tried == {name for name, kind in catalogue().items() if kind.card.in_scripts}
    exact = {name for plan in EXACT.values() for name in plan} | {"allocator"}
    assert exact == {name for name in tried if catalogue()[name].card.numerics is Numerics.EXACT}
    assert len(SHAPES) * len(ROUTES) >= 100


def test_the_page_names_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    named = set(re.findall(r"`(test_\w+\.py)`", (root / "docs" / "guides" / "never-changed.md").read_text(encoding="utf-8")))
    assert len(named) > 5
    assert named <= {path.name for path in (root / "tests" / "script").glob("test_*.py")}


@pytest.mark.slow
def test_scripts_end_as_without_us(tmp_path: Path) -> None:
    runs, pairs = Runs(tmp_path), list[tuple[Ended, Ended]]()
    for number, (shape, route) in enumerate(zip(SHAPES, [*ROUTES, *ROUTES], strict=False)):
        if number % 2:
            continue
        alone = runs.add(shape, route, "alone", WORKERS[0])
        pairs.append(
            (alone, runs.add(shape, route, "plan", WORKERS[0], {"plan": EXACT[("cache", "workers")[number % 4 // 2]]}))
        )
    pairs.append((pairs[0][0], runs.add("for", "attribute", "watched", WORKERS[0], OBSERVE)))
    blind = runs.add("for", "attribute", "plan", WORKERS[0], {"plan": EXACT["cache"]}, BLIND)
    runs.start()
    for alone, ours in pairs:
        assert difference(alone, ours) == "", ours.job
        assert alone.told("code.txt") == "0"
    assert "out.txt" in difference(pairs[0][0], blind), "the test does not detect a fault"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_and_route_ends_as_without_us(tmp_path: Path, shape: str) -> None:
    runs, exact, rounded = Runs(tmp_path), list[tuple[Ended, Ended]](), list[tuple[Ended, Ended]]()
    place = list(SHAPES).index(shape)
    for number, route in enumerate(ROUTES if shape != "table" else ["in place"], place):
        alone = runs.add(shape, route, "alone", WORKERS[0])
        plans = EXACT if shape == "table" else [list(EXACT)[number % 3]]
        exact += [(alone, runs.add(shape, route, "plan", WORKERS[0], {"plan": EXACT[name]})) for name in plans]
        if number % 2:
            rounded.append((alone, runs.add(shape, route, "plan", WORKERS[0], {"plan": ROUNDED})))
            continue
        workers = WORKERS[1 + number % 3]
        alone = runs.add(shape, route, "alone", workers)
        exact.append((alone, runs.add(shape, route, "watched", workers, OBSERVE)))
        others = {**EXACT["workers"], "loader_workers": {"num_workers": 3 - int(workers[0])}}
        exact.append((alone, runs.add(shape, route, "plan", workers, {"plan": others})))
    runs.start()
    for alone, ours in exact:
        assert difference(alone, ours) == "", ours.job
        assert alone.told("code.txt") == "0"
    for alone, ours in rounded:
        assert far(alone, ours, TOLERANCE["rounded"]) == "", ours.job
    for _, ours in exact + rounded:
        if ours.job.mode == "watched":
            assert json.loads(ours.told("seen-0.json"))["steps"] > 10
            continue
        told, plan = ours.applied, ours.job.config["plan"]
        assert told["steps"] > 10
        assert told["stale"] == ""
        acted = {*told["applied"], *told["stopped"]} & ON_DATA
        assert acted == plan.keys() & ON_DATA - REFUSED.get(shape, set()), (told, ours.job)


@needs_mounts
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["profile", "replay", "silent", "cut"])
def test_a_measured_run_of_every_shape_leaves_nothing(tmp_path: Path, mode: str) -> None:
    runs, found = Runs(tmp_path), list[tuple[Ended, dict[str, bytes | None]]]()
    for number, shape in enumerate(SHAPES):
        config = {"mode": mode, "updates": 6, "seconds": 60.0, "private": True}
        ended = runs.add(shape, "file", "measured", WORKERS[number % 2], config)
        found.append((ended, ended.files()))
    runs.start()
    for ended, before in found:
        assert_measured_leaves_nothing(ended, before)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE_IN_A_PLAN)
def test_plans_that_need_a_process_or_a_tolerance_of_their_own(tmp_path: Path, name: str) -> None:
    plan = ALONE_IN_A_PLAN[name]
    runs, ends = Runs(tmp_path), list[Ended]()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    under = ["-m", "hasten", "run", "--plan", "../plan.toml", "train.py", "--"]
    for number, words in enumerate((["train.py"], under)):
        ended = runs.add("validation between", "closure", "alone", WORKERS[0])
        ends.append(ended)
        if name == "compile":  # compiled dropout draws different numbers
            path = Path(ended.job.folder, "train.py")
            path.write_text(path.read_text(encoding="utf-8").replace("Dropout(0.1)", "Dropout(0.0)"), encoding="utf-8")
        Plan.from_dict(plan, catalogue()).save(Path(ended.job.folder, "../plan.toml"))
        done = subprocess.run(
            [sys.executable, *words, *WORKERS[0]],
            cwd=ended.job.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        told = {"code.txt": done.returncode, "out.txt": done.stdout, "err.txt": "" if number else done.stderr}
        for file, text in told.items():
            Path(ended.job.told, file).write_text(str(text), encoding="utf-8")
        refused = name == "graphs" and not torch.cuda.is_available()
        assert not number or ("ran without" in done.stderr) == refused, done.stderr
    alone, ours = ends
    assert alone.told("code.txt") == "0"
    assert (far(alone, ours, TOLERANCE[name]) if name in TOLERANCE else difference(alone, ours)) == ""


@needs_mounts
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["while and next", "zipped loaders", "resumes from its own file"])
def test_a_trial_leaves_nothing(tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Runs(tmp_path).add(shape, "file", "alone", WORKERS[0])
    monkeypatch.chdir(ended.job.folder)
    before = tree(Path(ended.job.folder))
    setting = TrialSetting(target="train.py", folder=tmp_path / "trials", hang_s=60.0, command=("train.py", *WORKERS[0]))
    plans: tuple[Settings, ...] = ({}, {"sample_cache": {}})
    for plan in plans:
        with Trial(setting, Plan.from_dict(plan, catalogue())) as trial:
            trial.call("warm", updates=5)
            assert len(trial.call("run", updates=5)["losses"]) == 5
    assert tree(Path(ended.job.folder)) == before
    assert not setting.told
