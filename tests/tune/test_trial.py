"""Trials are real processes, and every way of dying is a result with a kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from hasten.core.errors import TrialError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.tune.trials.trial import Trial, TrialSetting, trial_environment
from tests.tune.jobs import children, is_running, write_job

pytestmark = pytest.mark.slow


def setting_of(folder: Path, body: str = "", *, hang_s: float = 60.0) -> TrialSetting:
    return TrialSetting(target=write_job(folder, body), folder=folder / "trials", hang_s=hang_s)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def failure(setting: TrialSetting, updates: int = 20) -> TrialError:
    """Run a trial that must fail, and check that nothing of it is left."""
    before = children()
    with pytest.raises(TrialError) as caught, Trial(setting, Plan()) as trial:
        trial.call("run", updates=updates)
    assert wait_until(lambda: children() <= before)
    return caught.value


DYING = {
    "killed": (
        """
class J(Good):
    steps = 0
    def loss(self, model, batch):
        self.steps += 1
        if self.steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
""",
        ["ended by SIGKILL", "`run`"],
    ),
    "raised": (
        """
class Broken(Rows):
    def __getitem__(self, index):
        if index == 77:
            raise IndexError("sample 77 is torn")
        return super().__getitem__(index)

class J(Good):
    def train_data(self):
        return Broken(256)
""",
        ["IndexError", "sample 77 is torn", "job_under_trial.py:"],
    ),
    "nan": (
        """
class J(Good):
    steps = 0
    def loss(self, model, batch):
        self.steps += 1
        return super().loss(model, batch) * (float("nan") if self.steps == 4 else 1.0)
""",
        ["became nan at update 3"],
    ),
    "out_of_memory": (
        """
class J(Good):
    kept = []
    def model(self):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20),) * 2)
        return super().model()

    def loss(self, model, batch):
        self.kept.append(torch.ones(64 << 18))
        return super().loss(model, batch)
""",
        ["memory"],
    ),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long if kind in {"nan", "out_of_memory"} else ()) for kind in DYING]
)
def test_a_dying_trial_gives_a_failure_kind(tmp_path: Path, kind: str) -> None:
    body, words = DYING[kind]
    error = failure(setting_of(tmp_path, body), updates=40)
    assert error.kind == kind
    for word in words:
        assert word in str(error)
    assert "\n" not in str(error)


def test_a_python_memory_error_is_out_of_memory(tmp_path: Path) -> None:
    body = """
class J(Good):
    def train_data(self):
        raise MemoryError
"""
    assert failure(setting_of(tmp_path, body)).kind == "out_of_memory"


def test_a_hanging_trial_is_ended_with_its_children(tmp_path: Path) -> None:
    body = """
import subprocess
class J(Good):
    def loss(self, model, batch):
        child = subprocess.Popen(["sleep", "600"])
        (HERE / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
"""
    setting = setting_of(tmp_path, body, hang_s=60.0)
    with Trial(setting, Plan()) as trial, pytest.raises(TrialError) as caught:
        trial.call("run", updates=1, timeout_s=3.0)
    assert caught.value.kind == "hung"
    assert "within 3 s" in str(caught.value)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_a_job_that_cannot_be_loaded_leaves_no_process(tmp_path: Path) -> None:
    error = failure(setting_of(tmp_path, "J = 3"))
    assert error.kind == "raised"
    assert "not a hasten.Job" in str(error)


def test_an_exit_in_user_code_is_reported_with_its_last_output(tmp_path: Path) -> None:
    body = """
class J(Good):
    def loss(self, model, batch):
        print("farewell", file=sys.stderr)
        sys.exit(7)
"""
    error = failure(setting_of(tmp_path, body))
    assert error.kind == "killed"
    assert "code 7" in str(error)
    assert "farewell" in str(error)


def test_prints_of_the_user_reach_the_log_and_not_the_protocol(tmp_path: Path) -> None:
    body = """
class J(Good):
    def loss(self, model, batch):
        print('{"ok": false}' + "x" * 200_000)
        os.write(1, b'{"ok": true, "times": []}\\n')
        return super().loss(model, batch)
"""
    setting = setting_of(tmp_path, body)
    with Trial(setting, Plan()) as trial:
        answer = trial.call("run", updates=5)
    assert len(answer["times"]) == len(answer["losses"]) == 5
    log = b"".join(path.read_bytes() for path in setting.folder.glob("*.log"))
    assert log.count(b"x" * 200_000) == 5


def test_user_code_that_reads_input_gets_none_and_takes_no_command(tmp_path: Path) -> None:
    body = """
class J(Good):
    def valid_data(self):
        (HERE / "read").write_text(repr(sys.stdin.read()))
        return super().valid_data()

    def loss(self, model, batch):
        if self.stop:
            input("go on? ")
        return super().loss(model, batch)
    stop = False
    def metric(self, model, batch):
        type(self).stop = True
        return {}
"""
    with Trial(setting_of(tmp_path, body, hang_s=30.0), Plan()) as trial:
        trial.call("run", updates=1)
        trial.call("validate", max_batches=1)
        with pytest.raises(TrialError, match="EOFError") as caught:
            trial.call("run", updates=1)
    assert caught.value.kind == "raised"
    assert (tmp_path / "read").read_text() == "''"


def test_an_exception_leaves_the_trial_alive_for_the_next_command(tmp_path: Path) -> None:
    with Trial(setting_of(tmp_path), Plan()) as trial:
        with pytest.raises(TrialError):
            trial.call("prime", updates="many")
        assert len(trial.call("run", updates=2)["times"]) == 2
    with pytest.raises((TrialError, ValueError)):
        trial.call("run", updates=1)
    trial.end()


def test_rewinding_repeats_the_losses_and_another_seed_does_not(tmp_path: Path) -> None:
    setting = setting_of(tmp_path)
    with Trial(setting, Plan()) as trial:
        first = trial.call("run", updates=6)["losses"]
        trial.call("rewind")
        assert trial.call("run", updates=6)["losses"] == first
        assert trial.call("validate", max_batches=None)["metrics"]["loss"] > 0.0
        assert trial.call("memory", reset=True)["peak_bytes"] > 1 << 20
    with Trial(setting, Plan(), seed=5) as other:
        assert other.call("run", updates=6)["losses"] != first


def worker_pids(trial: Trial) -> list[int]:
    return [child.pid for child in psutil.Process(trial.pid).children(recursive=True)]


def with_workers() -> Plan:
    return Plan.from_dict({"loader_workers": {"num_workers": 1}}, catalogue())


def test_gradients_are_sampled_at_weights_that_another_trial_trained_to(tmp_path: Path) -> None:
    setting, weights = setting_of(tmp_path), tmp_path / "weights.pt"
    with Trial(setting, Plan()) as base, Trial(setting, Plan.from_dict({"zero_grad_to_none": {}}, catalogue())) as other:
        fresh = gradients_of(base, tmp_path)
        losses = base.call("run", updates=6)["losses"]
        assert base.call("settle", updates=6, seconds=60.0, path=str(weights)) == {"updates": 6}
        later = gradients_of(base, tmp_path, weights)
        assert np.array_equal(later, gradients_of(other, tmp_path, weights))
        assert not np.allclose(later, fresh, rtol=0.1)
        base.call("rewind")
        assert base.call("run", updates=6)["losses"] == losses
        assert np.array_equal(gradients_of(base, tmp_path), fresh)
        assert base.call("settle", updates=10**6, seconds=0.05, path=str(weights))["updates"] < 10**6
        torch.save({"stranger": torch.zeros(3)}, weights)
        assert not len(gradients_of(other, tmp_path, weights))


@pytest.mark.long
def test_weights_are_loaded_unless_they_belong_to_another_network(tmp_path: Path) -> None:
    setting, weights = setting_of(tmp_path), tmp_path / "weights.pt"
    with Trial(setting, Plan()) as base, Trial(setting, Plan()) as other:
        base.call("settle", updates=6, seconds=60.0, path=str(weights))
        untrained = other.call("validate", max_batches=None)["metrics"]["loss"]
        assert other.call("put_weights", path=str(weights)) == {"loaded": True}
        trained = other.call("validate", max_batches=None)["metrics"]["loss"]
        assert trained < untrained
        torch.save({"stranger": torch.zeros(3)}, weights)
        assert other.call("put_weights", path=str(weights)) == {"loaded": False}
        assert other.call("validate", max_batches=None)["metrics"]["loss"] == trained


def gradients_of(trial: Trial, folder: Path, weights: Path | None = None) -> Any:
    path = folder / "rows.npy"
    trial.call("gradients", batches=3, path=str(path), weights=None if weights is None else str(weights))
    return np.load(path, allow_pickle=False)


def test_freezing_stops_the_trial_and_its_workers_and_thawing_lets_them_go_on(tmp_path: Path) -> None:
    with Trial(setting_of(tmp_path), with_workers()) as trial:
        trial.call("run", updates=3)
        pids = [trial.pid, *worker_pids(trial)]
        assert len(pids) >= 2
        trial.freeze()
        assert wait_until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
        trial.thaw()
        assert len(trial.call("run", updates=3)["times"]) == 3
        trial.freeze()
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))


PARENT = """
import sys, time
from pathlib import Path
import psutil
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.tune.trials.trial import Trial, TrialSetting

plan = Plan.from_dict({"loader_workers": {"num_workers": 1}}, catalogue())
trial = Trial(TrialSetting(target=sys.argv[1], folder=Path(sys.argv[2])), plan)
trial.call("run", updates=3)
trial.freeze()
print(trial.pid, *[child.pid for child in psutil.Process(trial.pid).children(recursive=True)], flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a frozen process learns of its parent's death on Linux only")
def test_a_frozen_trial_and_its_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    target = write_job(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, target, str(tmp_path / "trials")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) >= 2
        assert all(is_running(pid) for pid in pids)
        parent.kill()
    try:
        assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    finally:
        for pid in pids:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_killed_trial_is_noticed_although_its_workers_hold_the_pipe(tmp_path: Path) -> None:
    with Trial(setting_of(tmp_path, hang_s=30.0), with_workers()) as trial:
        trial.call("run", updates=3)
        os.kill(trial.pid, signal.SIGKILL)
        with pytest.raises(TrialError) as caught:
            trial.call("run", updates=3)
    assert caught.value.kind == "killed"


def test_the_environment_of_a_trial_shares_compiled_code_unless_overridden(tmp_path: Path) -> None:
    ours = trial_environment(tmp_path, {"HOME": "/home/me"})
    assert ours["HOME"] == "/home/me"
    assert Path(ours["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(tmp_path)
    assert trial_environment(tmp_path, {"TORCHINDUCTOR_CACHE_DIR": "/mine"})["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize(
    ("environ", "seed", "used"),
    [
        ({}, 3, "3"),
        ({}, None, "0"),
        ({}, 2**32 + 3, "3"),
        ({"PYTHONHASHSEED": "random"}, 3, "3"),
        ({"PYTHONHASHSEED": "7"}, 3, "7"),
    ],
)
def test_sets_of_strings_have_the_same_order_in_trials_with_the_same_seed(
    tmp_path: Path, environ: dict[str, str], seed: int | None, used: str
) -> None:
    assert trial_environment(tmp_path, environ, seed=seed)["PYTHONHASHSEED"] == used


NUMBERED = """
import torch

TEXT = "the order of a set of words is another one in each process unless its hashes are seeded".split()
numbers = {word: number for number, word in enumerate(set(TEXT))}
ids = torch.tensor([[float(numbers[word])] for word in TEXT])
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(50):
    optimizer.zero_grad()
    loss = (model(ids) - torch.arange(len(TEXT))).square().mean()
    loss.backward()
    optimizer.step()
"""


def test_words_numbered_by_a_set_have_the_same_numbers_in_two_trials(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NUMBERED)
    setting = TrialSetting(target="", folder=tmp_path / "trials", command=(str(script),))
    losses = []
    for _ in range(2):
        with Trial(setting, Plan(), seed=1) as trial:
            losses.append(trial.call("run", updates=3)["losses"])
    assert losses[0] == losses[1]
