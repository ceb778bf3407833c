"""Time spent computing a value only to read it counts as reading; flushing a file counts for the phase that wrote it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.script.watch.record import (
    BACKWARD,
    CHECKPOINT,
    FORWARD,
    GAP,
    LOGGING,
    MAKING,
    OTHER,
    PHASES,
    VALIDATION,
    Recorder,
)


class Clock:
    """A scripted clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("hasten.script.watch.record.perf_counter", lambda: self.now)
        self.recorder = Recorder(updates=0, seconds=0.0)

    def seam(self, phase: int, seconds: float, idle: int | None = None) -> None:
        self.recorder.enter(phase)
        self.now += seconds
        self.recorder.leave(idle)

    def read(self, making: float, seconds: float) -> float:
        self.now += making
        self.recorder.enter(self.recorder.idle if self.recorder.idle == VALIDATION else LOGGING)
        self.now += seconds
        return self.recorder.leave_reading()

    def step(self) -> None:
        self.recorder.before_step()
        self.now += 1
        self.recorder.after_step("a")

    def last(self) -> dict[str, float]:
        return {name: round(value, 6) for name, value in zip(PHASES, self.recorder.steps[-1], strict=True) if value}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(monkeypatch)
    clock.step()
    return clock


def test_what_is_computed_between_two_readings_is_logging(clock: Clock) -> None:
    assert clock.read(2, 0.5) == 0.5  # the time before the first reading may have any purpose
    assert clock.read(3, 0.5) == 3.5
    assert clock.read(4, 0.5) == 4.5
    clock.now += 8
    clock.step()
    assert clock.last() == {"logging": 8.5, "other": 10, "optimizer": 1}


def test_one_reading_a_step_leaves_the_rest_as_it_was(clock: Clock) -> None:
    for _ in range(2):
        clock.read(2, 0.5)
        clock.now += 3
        clock.seam(FORWARD, 4, FORWARD)
        clock.step()
        assert clock.last() == {"logging": 0.5, "other": 5, "forward": 4, "optimizer": 1}


def test_after_backward_the_last_gap_is_still_the_optimizers(clock: Clock) -> None:
    clock.seam(BACKWARD, 1, GAP)
    clock.read(2, 0.5)
    clock.read(3, 0.5)
    clock.now += 4  # clipping
    clock.step()
    assert clock.last() == {"backward": 1, "other": 2, "logging": 4, "optimizer": 5}


def test_the_loss_that_is_read_on_its_way_is_still_forward(clock: Clock) -> None:
    clock.seam(FORWARD, 1, FORWARD)
    clock.read(2, 0.5)
    clock.now += 4
    clock.seam(BACKWARD, 1, GAP)
    clock.step()
    assert clock.last() == {"forward": 7, "logging": 0.5, "backward": 1, "optimizer": 1}


def test_an_evaluation_keeps_what_it_reads(clock: Clock) -> None:
    clock.seam(VALIDATION, 1, VALIDATION)
    clock.read(2, 0.5)
    clock.read(2, 0.5)
    clock.step()
    assert clock.last() == {"validation": 6, "optimizer": 1}


def test_what_follows_the_last_reading_of_a_script_is_its_own(clock: Clock) -> None:
    clock.read(1, 1)
    clock.now += 2
    clock.recorder.enter(MAKING)
    clock.recorder.leave()
    assert clock.recorder.settle()[OTHER] == 3
    assert clock.recorder.settle()[CHECKPOINT] == 0


SCRIPT = """
import os, sys
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with open("log.txt", "wb") as log:
    for step in range(8):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        if sys.argv[1] == "saves":
            torch.save(model.state_dict(), log)
        else:
            log.write(b"%f" % loss.item())
        for _ in range(20):
            os.fsync(log.fileno())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("which", "phase"), [("saves", "checkpoint"), ("logs", "logging")])
def test_a_file_that_goes_to_the_disk_is_seen(tmp_path: Path, which: str, phase: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hasten.script", "--json", "found.json", "train.py", which]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["0"]
    times = {what: times for what, file, _, times, _ in found["places"] if file.endswith("train.py")}
    assert times["os.fsync after torch.save" if which == "saves" else "os.fsync"] >= 100
    total = dict(zip(found["phases"], map(sum, zip(*found["seconds"], strict=True)), strict=True))
    other = "logging" if phase == "checkpoint" else "checkpoint"
    assert total[phase] > 0
    assert total[other] == 0
