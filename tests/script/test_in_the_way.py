"""Hasten does not interfere with a script's modules: the script keeps its own names, and Hasten imports Python's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.script.entry.launch import Watch, run_under, run_watched

SAME_NAMES = ("resource", "plan", "tomllib", "shlex", "psutil")
"""Names of project modules that Hasten's imports also use. Names that torch itself imports would break torch as well."""
TRAIN = f"""
import sys, os
import torch
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import statistics
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(8):
    loss = net(torch.ones(8, 4)).sum(); opt.zero_grad(); loss.backward(); opt.step()
import {", ".join(SAME_NAMES)}
print(statistics.NAME, *(module.NAME for module in ({", ".join(SAME_NAMES)})))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, modules next to it, and one that the script adds to the path later."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "statistics.py").write_text("NAME = 'statistics of the project'")
    for name in SAME_NAMES:
        (tmp_path / f"{name}.py").write_text(f"NAME = '{name} of the project'")
    return tmp_path


@pytest.mark.slow
def test_a_project_keeps_its_own_names(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = (str(project / "train.py"),)
    seen = run_watched(command)
    assert (seen.code, seen.failures) == (0, {})
    assert seen.ranks[0]["steps"] == 7
    ran = run_under(command, {}, env=os.environ)
    assert (ran.code, ran.failures) == (0, {})
    assert ran.ranks[0]["steps"] == 8
    expected = " ".join(f"{name} of the project" for name in ("statistics", *SAME_NAMES))
    assert capfd.readouterr().out.splitlines() == [expected] * 2


@pytest.mark.slow
def test_the_command_line_starts_in_a_folder_with_such_names(project: Path) -> None:
    words = [sys.executable, "-m", "hasten", "profile", "missing.py"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=100, check=False)
    assert "There is no script missing.py" in done.stderr


ELSEWHERE = """
import asyncio
import torch

def train():
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    try:
        for step in range(10**6):
            net(torch.ones(8, 4)).sum().backward()
            optimizer.step()
    except BaseException as error:
        print("raised in the step:", repr(error))

async def main():
    await asyncio.create_task(task())

async def task():
    train()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_measured_run_ends_inside_a_task_and_the_script_sees_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(ELSEWHERE)
    seen = run_watched((str(tmp_path / "train.py"),), Watch(mode="profile", updates=5, seconds=9.0))
    assert (seen.code, seen.failures, seen.ranks[0]["steps"]) == (0, {}, 5)
    assert capfd.readouterr() == ("", "")
