"""Limits apply to every script: training in another thread is profiled, training in child processes is reported."""

from __future__ import annotations

import _thread
import threading
from pathlib import Path

import pytest
import torch

from hasten.core.errors import TrialError
from hasten.core.plan import Plan
from hasten.script.entry.launch import Watch, run_watched
from hasten.script.plan.host import Host
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.profile import Study, profile_script
from hasten.script.watch.record import Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained
from hasten.tune.trials import trial as module
from hasten.tune.trials.trial import Trial, TrialSetting

SCRIPT = """
import sys, threading, time
import torch
import torch.multiprocessing as mp

def train(rank=0, model=None):
    model = model or torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20_000):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        time.sleep(0.005)

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "thread":
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    elif how == "mp.spawn":
        mp.spawn(train, nprocs=2)
    else:
        mp.set_start_method(how)
        shared = torch.nn.Linear(4, 1).share_memory()
        both = [mp.Process(target=train, args=(rank, shared)) for rank in range(2)]
        [process.start() for process in both]
        [process.join() for process in both]
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def steps_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()


def watched(*, follows: bool = True) -> tuple[Recorder, Seams]:
    recorder = Recorder(updates=0, seconds=0.0, follows=follows)
    seams = Seams(recorder, Fetch(recorder, Trained()))
    seams.install(excepthook=False)
    return recorder, seams


@pytest.mark.parametrize(("follows", "own", "seen"), [(True, 0, 4), (True, 2, 1), (False, 0, 0)])
def test_the_thread_that_trains_is_watched_where_its_own_does_not(follows: bool, own: int, seen: int) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder, seams = watched(follows=follows)
    try:
        steps_of(model, optimizer, own)
        thread = threading.Thread(target=steps_of, args=(model, optimizer, 5))
        thread.start()
        thread.join()
    finally:
        seams.remove()
    assert len(recorder.steps) == seen


def test_steps_in_a_thread_of_autograd_count_while_it_goes_back() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_parameter: object) -> None:
        done = threading.Event()

        def steps() -> None:
            optimizer.step()
            done.set()

        _thread.start_new_thread(steps, ())  # like the threads that an accelerator's autograd starts without Python
        done.wait()

    model.bias.register_post_accumulate_grad_hook(step)
    recorder, seams = watched()
    host = Host(Plan())
    host.begin()
    try:
        for _ in range(4):
            model(torch.ones(2, 4)).mean().backward()
    finally:
        host.end()
        seams.remove()
    assert len(recorder.steps) == 3
    assert recorder.thread == threading.get_ident()
    assert host.steps == 4


def test_a_plan_follows_the_thread_that_trains() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    host = Host(Plan())
    host.begin()
    try:
        thread = threading.Thread(target=steps_of, args=(model, optimizer, 5))
        thread.start()
        thread.join()
        assert host.opened
        assert host.steps == 5
    finally:
        host.end()


@pytest.mark.slow
def test_training_in_forked_processes_ends_with_a_plain_word_within_the_limit(script: str) -> None:
    with pytest.raises(TrialError, match="trains in 2 child processes that it starts itself"):
        profile_script((script, "fork"), Study(seconds=1.0))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["spawn", "forkserver", "mp.spawn"])
def test_training_in_spawned_processes_does_too(script: str, how: str) -> None:
    with pytest.raises(TrialError, match="child processes that it starts itself"):
        profile_script((script, how), Study(seconds=1.0))


@pytest.mark.slow
@pytest.mark.long
def test_training_in_another_thread_is_profiled_within_the_limit(script: str) -> None:
    seen = run_watched((script, "thread"), Watch(mode="profile", seconds=1.0))
    assert seen.code == 0
    assert len(seen.ranks[0]["seconds"]) > 3


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["fork", "mp.spawn"])
def test_a_trial_of_such_a_script_says_so(script: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELSEWHERE_S", 0.5)
    setting = TrialSetting(target="train.py", folder=tmp_path / "trials", hang_s=60.0, command=(script, how))
    with pytest.raises(TrialError, match="child processes that it starts itself"):
        Trial(setting, Plan(), seed=0)


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_of_a_script_that_trains_in_another_thread_takes_commands(script: str, tmp_path: Path) -> None:
    setting = TrialSetting(target="train.py", folder=tmp_path / "trials", hang_s=60.0, command=(script, "thread"))
    with Trial(setting, Plan(), seed=0) as trial:
        assert len(trial.call("run", updates=5)["losses"]) == 5
