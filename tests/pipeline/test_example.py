"""The example runs from two commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.pipeline.control import state_of
from hasten.pipeline.description import read_pipeline
from tests.cli.called import called

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
DIALOGUE = EXAMPLE.with_name("dialogue")


def test_it_is_explained_before_it_has_run(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("hasten-pipeline")))
    done = called("pipeline", "explain", str(folder))
    assert done.returncode == 0, done.stderr
    assert "6 of 6 stages would run" in done.stdout
    assert list(read_pipeline(folder).stages)[-1] == "check"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_runs(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("hasten-pipeline")))
    command = [sys.executable, "-m", "hasten", "pipeline", "run", str(folder)]
    environ = {**os.environ, "HASTEN_LEASES": str(tmp_path / "leases")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    state = state_of(read_pipeline(folder))
    assert state.complete
    assert state.views["joined"].done["form"] == "merged"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_six_stages_of_the_dialogue_recipe_run(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DIALOGUE, tmp_path / "example", ignore=shutil.ignore_patterns("hasten-pipeline")))
    environ = {**os.environ, "HASTEN_LEASES": str(tmp_path / "leases")}
    command = [sys.executable, "-m", "hasten", "pipeline", "run", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    state = state_of(read_pipeline(folder))
    assert state.complete
    assert list(state.views)[-1] == "check"
