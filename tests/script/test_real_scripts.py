"""Behaviour found only in real scripts: manual updates, whole steps in a closure, endless loaders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from hasten.script.data.describe import MOST_BATCHES, describe
from hasten.script.plan.live import script_live
from hasten.script.watch import record
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.profile import Study, profile_script
from hasten.script.watch.record import Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

SCRIPT = """
import torch
net = torch.nn.Linear(4, 1)
while True:
    net.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(parameter.grad, alpha=-0.01)
"""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test advances."""
    clock = [100.0]
    monkeypatch.setattr(record, "perf_counter", lambda: clock[0])
    return clock


def test_many_backward_passes_without_a_step_end_the_watching(now: list[float]) -> None:
    recorder = Recorder(seconds=2.0)
    for _ in range(record.BACKWARDS_WITHOUT + 10):
        recorder.after_backward()
    assert recorder.active  # no time has passed, so steps may still follow
    now[0] += 4.1
    recorder.after_backward()
    assert not recorder.active


def test_few_backward_passes_do_not(now: list[float]) -> None:
    recorder = Recorder(seconds=2.0)
    for _ in range(record.BACKWARDS_WITHOUT - 1):
        recorder.after_backward()
        now[0] += 1.0
    assert recorder.active


def test_a_step_is_all_that_is_waited_for(now: list[float]) -> None:
    recorder = Recorder(seconds=2.0)
    recorder.after_step("an optimizer")
    for _ in range(2 * record.BACKWARDS_WITHOUT):
        recorder.after_backward()
        now[0] += 1.0
    assert recorder.active
    assert recorder.backwards == 0


@pytest.mark.slow
def test_a_profile_counts_updates_by_hand(tmp_path: Path) -> None:
    script = tmp_path / "by_hand.py"
    script.write_text(SCRIPT, encoding="utf-8")
    found = profile_script([str(script)], Study(seconds=0.05))
    assert found["anchor"] == "parameters"
    assert found["steps"] > 10
    assert found["failed"] is None
    assert found["phases"]["backward"] > found["phases"]["data"] == 0


def test_the_line_of_a_step_is_not_charged_with_what_its_closure_does(now: list[float]) -> None:
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained()))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    def closure() -> None:
        now[0] += 30.0

    made = seams.before_step(optimizer, (optimizer, closure), {})
    assert made is not None
    now[0] += 1.0
    made[0][1]()
    now[0] += 2.0
    seams.after_step(optimizer, (optimizer,), {})
    assert [(what, seconds) for (what, _, _), (_, seconds) in recorder.places.items()] == [("optimizer", 3.0)]


def test_a_loader_without_end_is_described_at_once() -> None:
    dataset = TensorDataset(torch.zeros(10, 1))
    loader = DataLoader(dataset, sampler=RandomSampler(dataset, replacement=True, num_samples=int(1e10)), batch_size=32)
    live = script_live()
    describe(live, loader)
    assert live.order is not None
    order = live.order(0)
    assert len(order) == MOST_BATCHES
    assert (len(order[0]), max(order[0])) == (32, 9)
