"""A script that fails under `profile` is said to have failed, with its exit status, and what was measured is still shown."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from hasten.script.watch.fetch import Fetch
from hasten.script.watch.losses import Losses, not_finite_words
from hasten.script.watch.profile import failure_words
from hasten.script.watch.record import LOGGING, Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

SCRIPT = """
import os, signal, sys, time, torch
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(10**9):
    optimizer.zero_grad()
    net(torch.randn(8, 8)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 40:
        if sys.argv[1] == "raise":
            raise RuntimeError("the script's own error")
        if sys.argv[1] == "exit":
            sys.exit(3)
        if sys.argv[1] == "leave":
            os._exit(5)
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "words", "code"),
    [
        ("raise", 4, "failed with exit status 1: RuntimeError: the script's own error (train.py:12)", 1),
        pytest.param("exit", 4, "failed with exit status 3.", 3, marks=pytest.mark.long),
        pytest.param("leave", 4, "failed with exit status 5.", 5, marks=pytest.mark.long),
        pytest.param("SIGTERM", 4, "was ended by SIGTERM.", -15, marks=pytest.mark.long),
        pytest.param("SIGKILL", 4, "was ended by SIGKILL.", -9, marks=pytest.mark.long),
        pytest.param("SIGINT", 130, "was ended by SIGINT: KeyboardInterrupt", -2, marks=pytest.mark.long),
    ],
)
def test_a_script_that_fails_is_said_to_have_failed(tmp_path: Path, how: str, status: int, words: str, code: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "profile", "train.py", "--json", "found.json", "--seconds", "0.2", "--", how],
        capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert f"The script {words}" in done.stderr
    assert "Next:" not in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["failed"]["exit_code"] == code
    assert found["failed"]["signal"] == (how if code < 0 else None)
    assert 8 <= found["steps"] <= 40
    assert found["phases"]["other"] > 0.5  # it sleeps


def test_a_failure_is_described_in_one_sentence() -> None:
    assert failure_words({"exit_code": -9, "signal": "SIGKILL", "error": None}) == "The script was ended by SIGKILL."
    assert failure_words({"exit_code": 2, "signal": None, "error": "E: x"}) == "The script failed with exit status 2: E: x."


def losses(*values: float) -> Losses:
    seen = Losses()
    for step, value in enumerate(values, 1):
        seen.note(torch.tensor(value), step)
    return seen


def test_a_loss_that_is_nan_is_noticed() -> None:
    assert losses(1.0, 2.0).not_finite() is None
    assert losses(1.0, math.nan, 2.0).not_finite() == {"step": 2, "value": "nan", "times": 1}
    assert losses(math.inf, 1.0).not_finite() is None  # a gradient scaler finds its scale
    assert losses(1.0, math.inf, math.inf).not_finite() == {"step": 2, "value": "inf", "times": 2}
    assert "nan at step 2" in not_finite_words({"step": 2, "value": "nan", "times": 3})


def test_only_single_real_numbers_are_losses() -> None:
    seen = Losses()
    for value in (torch.full((2,), math.nan), None, (), torch.tensor(1)):
        seen.note(value, 1)
    assert seen.not_finite() is None
    seen.note([torch.tensor(math.nan)], 2)
    assert seen.not_finite() is not None


class Tokens(Dataset[list[int]]):
    def __init__(self) -> None:
        self.tokens = torch.arange(8)

    def __getitem__(self, index: int) -> list[int]:
        return self._padded(index)

    def _padded(self, index: int) -> list[int]:
        return self.tokens[: index + 1].tolist()


def test_values_read_to_make_a_sample_are_no_metrics() -> None:
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained()))
    seams.install(hooks=False, excepthook=False)
    try:
        assert Tokens()[2] == [0, 1, 2]
        assert recorder.current[LOGGING] == 0
        assert torch.ones(1).item() == 1.0
        assert recorder.current[LOGGING] > 0
    finally:
        seams.remove()
    assert {what for what, _, _ in recorder.places} == {".item()"}
