"""Threads between operators: set once in a process, so in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hasten.core.errors import PlanError
from hasten.core.plan import Plan
from hasten.optimizations.interop_threads import VARIABLE, InteropThreads
from hasten.tune.trials.trial import Trial, TrialSetting
from tests.optimizations.contract import Attention, facts, make_loop

SCRIPTED = {"RecursiveScriptModule": 1}
JOB = '''
import torch
from pathlib import Path
from torch.utils.data import TensorDataset
import hasten

class Told(hasten.Job):
    """Says how many threads there are when its model is made."""

    batch_size = 2

    def model(self):
        Path({told!r}).write_text(str(torch.get_num_interop_threads()))
        return torch.nn.Linear(2, 1)

    def train_data(self):
        return TensorDataset(torch.ones(4, 2))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, batch):
        return model(batch[0]).mean()
'''


def write_job(folder: Path) -> tuple[str, Path]:
    told = folder / "told"
    (folder / "told_job.py").write_text(JOB.format(told=str(told)), encoding="utf-8")
    return f"{folder / 'told_job.py'}:Told", told


@pytest.mark.parametrize(("cores", "expected"), [(8, [8, 1]), (1, [1])])
def test_the_candidates_are_the_cores_and_one(cores: int, expected: list[int]) -> None:
    fit = InteropThreads.fit(facts(job={"module_counts": SCRIPTED}, on={"cores": cores}))
    assert [setting.settings()["num_threads"] for setting in fit.settings] == expected


@pytest.mark.slow
def test_a_trial_sets_it_early_enough(tmp_path: Path) -> None:
    target, told = write_job(tmp_path)
    plan = Plan(optimizations=(InteropThreads(num_threads=3),))
    with Trial(TrialSetting(target=target, folder=tmp_path), plan) as trial:
        found = trial.call("trace")["evidence"]["interop_threads"]
    assert [check["passed"] for check in found] == [True], found
    assert found[0]["seen"] == "3, and the process was started for 3"
    assert told.read_text(encoding="utf-8") == "3"


@pytest.mark.slow
def test_a_run_starts_itself_again_and_sets_it(tmp_path: Path) -> None:
    target, told = write_job(tmp_path)
    Plan(optimizations=(InteropThreads(num_threads=3),)).save(tmp_path / "hasten.toml")
    options = ["--plan", str(tmp_path / "hasten.toml"), "--out", str(tmp_path / "out"), "--updates", "1"]
    subprocess.run([sys.executable, "-m", "hasten", "run", target, *options], check=True, capture_output=True, timeout=60)
    assert told.read_text(encoding="utf-8") == "3"


@pytest.mark.slow
def test_too_late_is_said() -> None:
    program = (
        "import torch; from hasten.optimizations.interop_threads import InteropThreads as I\n"
        "torch.set_num_interop_threads(3)\n"
        "I(num_threads=3).apply(None)()\n"
        "I(num_threads=2).apply(None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    words = "MachineError: It is too late to set the number of inter-op threads to 2: it is 3"
    assert words in done.stderr


def test_a_process_that_was_not_started_for_it_refuses() -> None:
    with pytest.raises(PlanError, match=f"{VARIABLE}=2"):
        make_loop(Attention(), InteropThreads(num_threads=2))


def test_no_thread_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        InteropThreads(num_threads=0)
