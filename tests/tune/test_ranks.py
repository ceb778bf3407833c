"""A trial of several ranks answers, freezes and dies as one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from hasten.core.errors import MachineError, TrialError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.report.evidence import load
from hasten.train.process_group import rank_environment, read_shared_machine, shared_environment, stay_with_launcher
from hasten.tune import subject
from hasten.tune.request import TuneRequest
from hasten.tune.session import Session
from hasten.tune.trials.ranks import checks_of, ended_words, failure_of, merged, peak_of
from hasten.tune.trials.trial import Trial, TrialSetting, trial_environment
from tests.cli.called import called
from tests.tune.jobs import children, is_running, write_job
from tests.tune.test_trial import setting_of, wait_until, worker_pids

SLOW = pytest.mark.slow
OK = {"ok": True}


def group_of(folder: Path, body: str = "", *, ranks: int = 2) -> TrialSetting:
    setting = setting_of(folder, body)
    return TrialSetting(target=setting.target, folder=setting.folder, hang_s=60.0, ranks=ranks)


def buckets() -> Plan:
    return Plan.from_dict({"gradient_buckets": {"bucket_mb": 0.0005}}, catalogue())


@SLOW
def test_a_group_answers_as_one_process_does(tmp_path: Path) -> None:
    with Trial(setting_of(tmp_path), Plan()) as alone:
        expected = alone.call("run", updates=6)
    with Trial(group_of(tmp_path), buckets()) as trial:
        assert len(worker_pids(trial)) == 1
        answer = trial.call("run", updates=6)
        assert answer["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert answer["items"] == expected["items"] == [8] * 6
        assert len(answer["times"]) == 6
        trial.call("rewind")
        assert trial.call("run", updates=6)["losses"] == answer["losses"]
        checks = trial.call("trace")["evidence"]["gradient_buckets"]
        assert all(check["passed"] for check in checks), checks
        assert trial.call("gradients", batches=3, path=str(tmp_path / "rows.npy"))["rows"] == 5
        assert (tmp_path / "rows.npy").exists()
        assert trial.call("settle", updates=3, seconds=9.0, path=str(tmp_path / "weights.pt")) == {"updates": 0}
        assert trial.call("validate", max_batches=None)["metrics"]["loss"] > 0.0
        assert trial.call("memory", reset=False)["peak_bytes"] > 2 << 20


@pytest.mark.long
@SLOW
def test_a_group_is_profiled(tmp_path: Path) -> None:
    with Trial(group_of(tmp_path), Plan()) as trial:
        answer = trial.call("profile", slice_s=0.1, quick=False)
    assert answer["profile"]["phases"]["sync"] > 0.0
    assert answer["facts"]["straggler"] >= 1.0
    assert answer["profile"]["job"]["ranks"] == 2
    assert "shared by 2 local ranks" in answer["profile"]["machine"]["cores"]["reason"]


FAILING = {
    "raised": (
        """
class J(Good):
    def loss(self, model, batch):
        if os.environ["RANK"] == "1" and self.seen() == 4:
            raise IndexError("sample 77 is torn")
        return super().loss(model, batch)
    steps = 0
    def seen(self):
        self.steps += 1
        return self.steps
""",
        ["rank 1: IndexError", "sample 77 is torn"],
    ),
    "killed": (
        """
class J(Good):
    steps = 0
    def loss(self, model, batch):
        self.steps += 1
        if os.environ["RANK"] == "1" and self.steps == 4:
            print("farewell", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
""",
        ["rank 1, during `run`: was ended by SIGKILL", "farewell"],
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
}


@SLOW
@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        pytest.param("raised", Plan(), id="raised-flat"),
        pytest.param("raised", buckets(), id="raised-buckets", marks=pytest.mark.long),
        pytest.param("killed", Plan(), id="killed-flat", marks=pytest.mark.long),
        pytest.param("killed", buckets(), id="killed-buckets", marks=pytest.mark.long),
        pytest.param("nan", Plan(), id="nan-flat", marks=pytest.mark.long),
        pytest.param("nan", buckets(), id="nan-buckets", marks=pytest.mark.long),
    ],
)
def test_a_failing_rank_is_reported_and_ends_the_group(tmp_path: Path, kind: str, plan: Plan) -> None:
    body, words = FAILING[kind]
    before = children()
    with Trial(group_of(tmp_path, body), plan) as trial:
        with pytest.raises(TrialError) as caught:
            trial.call("run", updates=20)
        assert caught.value.kind == kind
        for word in words:
            assert word in str(caught.value)
        assert wait_until(lambda: not trial.alive)
    assert wait_until(lambda: children() <= before)


@pytest.mark.long
@SLOW
def test_a_rank_that_cannot_load_the_job_ends_the_group(tmp_path: Path) -> None:
    before = children()
    body = """
class J(Good):
    def model(self):
        if os.environ["RANK"] == "1":
            raise OSError("no such weights")
        return super().model()
"""
    with pytest.raises(TrialError, match="rank 1: OSError: no such weights"), Trial(group_of(tmp_path, body), buckets()):
        pass
    assert wait_until(lambda: children() <= before)


@pytest.mark.long
@SLOW
def test_a_hanging_rank_makes_the_group_hang(tmp_path: Path) -> None:
    body = """
class J(Good):
    def loss(self, model, batch):
        if os.environ["RANK"] == "1":
            time.sleep(600)
        return super().loss(model, batch)
"""
    before = children()
    with Trial(group_of(tmp_path, body), Plan()) as trial:
        with pytest.raises(TrialError, match="within 3 s") as caught:
            trial.call("run", updates=1, timeout_s=3.0)
        assert caught.value.kind == "hung"
    assert wait_until(lambda: children() <= before)


@pytest.mark.long
@SLOW
def test_a_rank_that_dies_between_two_commands_is_noticed(tmp_path: Path) -> None:
    with Trial(group_of(tmp_path), Plan()) as trial:
        trial.call("run", updates=1)
        trial.freeze()
        os.kill(worker_pids(trial)[0], signal.SIGKILL)
        trial.thaw()
        with pytest.raises(TrialError, match="rank 1, during `rewind`: was ended by SIGKILL"):
            trial.call("rewind")


@pytest.mark.long
@SLOW
def test_freezing_stops_every_rank(tmp_path: Path) -> None:
    with Trial(group_of(tmp_path), Plan()) as trial:
        pids = [trial.pid, *worker_pids(trial)]
        trial.freeze()
        assert wait_until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
        trial.thaw()
        assert len(trial.call("run", updates=2)["times"]) == 2
        trial.freeze()
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))


PARENT = """
import sys, time
from pathlib import Path
import psutil
from hasten.core.plan import Plan
from hasten.tune.trials.trial import Trial, TrialSetting

trial = Trial(TrialSetting(target=sys.argv[1], folder=Path(sys.argv[2]), ranks=2), Plan())
trial.freeze()
print(trial.pid, *[child.pid for child in psutil.Process(trial.pid).children(recursive=True)], flush=True)
time.sleep(600)
"""


@SLOW
@pytest.mark.skipif(sys.platform != "linux", reason="a frozen process learns of its parent's death on Linux only")
def test_a_frozen_group_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, write_job(tmp_path), str(tmp_path / "trials")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        parent.kill()
    try:
        assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    finally:
        for pid in pids:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


# `hasten run --ranks`.


def hasten(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hasten", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)


@SLOW
def test_run_trains_in_ranks_and_one_of_them_writes(tmp_path: Path) -> None:
    target, plan = write_job(tmp_path), tmp_path / "plan.toml"
    buckets().save(plan)
    done = hasten("run", target, "--updates", "40", "--ranks", "2", "--plan", str(plan), "--out", "two", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained 40 updates") == 1
    assert called("run", target, "--updates", "40", "--out", "one", cwd=tmp_path).returncode == 0
    one, two = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("one", "two"))
    assert list(one) == list(two)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == sorted(line["update"] for line in lines)
    assert lines[-1]["update"] == 40


@pytest.mark.long
@SLOW
def test_run_ends_when_a_rank_fails(tmp_path: Path) -> None:
    done = hasten("run", write_job(tmp_path, FAILING["raised"][0]), "--ranks", "2", folder=tmp_path)
    assert done.returncode == 1
    assert "sample 77 is torn" in done.stderr


ENDLESS = """
class J(Good):
    epochs = 100_000
"""


@SLOW
@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's death on Linux only")
@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 0, marks=pytest.mark.long),
        (signal.SIGKILL, -9),
    ],
)
def test_the_ranks_of_a_run_end_with_it(tmp_path: Path, number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-m", "hasten", "run", write_job(tmp_path, ENDLESS), "--ranks", "2", "--out", "out"]
    weights = tmp_path / "out" / "model.pt"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert wait_until(weights.exists, 60.0)
            ranks = [child.pid for child in psutil.Process(process.pid).children()]
            assert len(ranks) == 2
            process.send_signal(number)
            assert process.wait(timeout=30) == status
        finally:
            process.kill()
        assert wait_until(lambda: not any(is_running(pid) for pid in ranks))
    assert torch.load(weights, weights_only=True)


# `hasten compare --ranks` and `hasten tune --ranks`.

BROAD = """
class J(Good):
    batch_size = 8

    def model(self):
        return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
"""


@pytest.mark.long
@SLOW
@pytest.mark.timeout(100)
def test_compare_sums_gradients_in_both_ways(tmp_path: Path) -> None:
    target, plan, found = write_job(tmp_path, BROAD), tmp_path / "plan.toml", tmp_path / "found.json"
    Plan.from_dict({"gradient_buckets": {"bucket_mb": 0.1}}, catalogue()).save(plan)
    done = hasten(
        "compare", target, "--plan", "-", "--plan", str(plan), "--ranks", "2", "--updates", "20", "--budget", "1s",
        "--json", str(found), folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(found.read_text(encoding="utf-8"))
    assert result["ranks"] == 2
    assert {sample["arm"] for sample in result["samples"]} == {"A", "B"}
    assert all(sample["items"] == 20 * 8 for sample in result["samples"])


@pytest.mark.long
@SLOW
@pytest.mark.timeout(110)
def test_tune_works_with_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether buckets pay depends on the machine; the test checks that they were tried with ranks."""
    names = ("gradient_buckets", "gradient_compression")
    monkeypatch.setattr(subject, "catalogue", lambda: {name: catalogue()[name] for name in names})
    before, out = children(), tmp_path / "out"
    request = TuneRequest(target=write_job(tmp_path, BROAD), out=out, budget_s=50.0, ranks=2)
    Session(request).run()
    assert children() <= before
    evidence = load(out / "evidence.json")
    assert evidence.machine["ranks"] == evidence.job.more["ranks"] == 2
    assert evidence.phases["sync"] > 0.0
    assert evidence.commands
    assert all("--ranks 2" in line for line in evidence.commands)
    assert {rung.name for rung in evidence.rungs} == set(names)


# How a group combines its answers.


def test_the_slowest_rank_counts() -> None:
    one = {**OK, "times": [1.0, 5.0], "items": [4, 4], "losses": [0.5, 0.4], "major_faults": 1, "minor_faults": 2}
    two = {**OK, "times": [3.0, 2.0], "items": [4, 3], "losses": [0.5, 0.4], "major_faults": 0, "minor_faults": 5}
    both = merged("run", [one, two])
    assert both["times"] == [3.0, 5.0]
    assert both["items"] == [8, 7]
    assert (both["major_faults"], both["minor_faults"]) == (1, 7)
    assert merged("prime", [{**OK, "seconds": 1.0}, {**OK, "seconds": 4.0}])["seconds"] == 4.0


def test_memory_is_shared_on_a_cpu_only() -> None:
    assert peak_of([3, 4], "cpu") == 7
    assert peak_of([3, 4], "cuda") == 4
    answers = [{**OK, "peak_bytes": 3, "device": "cpu"}, {**OK, "peak_bytes": 4, "device": "cpu"}]
    assert merged("memory", answers)["peak_bytes"] == 7


def test_a_proof_must_be_given_on_every_rank() -> None:
    good, bad = ({"name": "sent", "passed": passed, "seen": "3"} for passed in (True, False))
    assert checks_of([[good], [good]]) == [good]
    assert checks_of([[good], [bad]]) == [{"name": "sent", "passed": False, "seen": "rank 1: 3"}]


def test_a_death_is_reported_before_the_first_failure() -> None:
    def answer(kind: str, words: str) -> dict[str, Any]:
        return {"ok": False, "kind": kind, "message": words}

    lost, torn = answer("raised", "connection closed"), answer("raised", "torn")
    assert failure_of({0: OK, 2: torn, 1: lost}, "run")["message"] == "rank 2: torn"
    dead = failure_of({0: lost, 1: answer("killed", ended_words(-9))}, "run")
    assert dead["kind"] == "killed"
    assert dead["message"] == "rank 1, during `run`: was ended by SIGKILL, perhaps because the system ran out of memory"
    assert ended_words(3) == "exited with code 3"


def test_each_rank_has_its_share_of_the_cores() -> None:
    ours = rank_environment(1, 2, 4711, {"HOME": "/home/me", "LOCAL_WORLD_SIZE": "1"})
    assert ours["RANK"] == ours["LOCAL_RANK"] == "1"
    assert ours["WORLD_SIZE"] == ours["LOCAL_WORLD_SIZE"] == "2"
    assert (ours["MASTER_ADDR"], ours["MASTER_PORT"]) == ("127.0.0.1", "4711")
    shared = read_shared_machine(2)
    assert int(shared_environment(2, {})["OMP_NUM_THREADS"]) == shared.cores.value
    assert "2 local ranks" in shared.cores.reason
    assert shared_environment(2, {"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"] == "5"
    assert ours["PYTHONHASHSEED"] == "0"


def test_the_environment_of_a_group_contains_its_share(tmp_path: Path) -> None:
    assert trial_environment(tmp_path, {}, ranks=2)["LOCAL_WORLD_SIZE"] == "2"
    assert "LOCAL_WORLD_SIZE" not in trial_environment(tmp_path, {})


def test_another_number_of_ranks_than_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    stay_with_launcher(4)
    stay_with_launcher(1)
    with pytest.raises(MachineError, match="--ranks is 2, but 4 ranks were started"):
        stay_with_launcher(2)
