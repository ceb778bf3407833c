"""The plugin of pytest: it costs nothing unless used, and a marked test ends as the verdict says."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.check.repositories import new_repository

PLUGIN = "hasten.check.pytest_plugin"
STUBBED = """
import pytest
from hasten.check import pytest_plugin
from tests.check.test_result import result

@pytest.fixture(autouse=True, scope="session")
def _stub():
    pytest_plugin.check_training = lambda folder, target, *arguments, **options: result(options["against"])
"""
TESTS = """
import pytest
from hasten.core.stats import Verdict

@pytest.mark.training_speed("train.py", against=Verdict.SLOWER)
def test_slower(): raise AssertionError("the body ran")

@pytest.mark.training_speed("train.py", against=Verdict.UNDECIDED)
def test_undecided(): raise AssertionError("the body ran")

@pytest.mark.training_speed("train.py", against=Verdict.SAME)
def test_same(): pass

def test_by_hand(training_check):
    assert training_check("train.py", against=Verdict.FASTER).status == 0
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--strict-markers", "-p", "no:cacheprovider", *arguments]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import pytest; sys.exit(pytest.main({command[3:]!r}))"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_marked_test_ends_as_the_verdict_says(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "repo", conftest__py=STUBBED, test_speed__py=TESTS, pytest__ini="[pytest]\n")
    is_installed = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    done = run_pytest(folder, *(() if is_installed else ("-p", PLUGIN)))
    assert "1 failed, 2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "the body ran" not in done.stdout
    assert "slower: updates take 20." in done.stdout


def test_loading_the_plugin_imports_no_torch() -> None:
    code = f"import sys, pytest, {PLUGIN}; print(*(n for n in ('torch', 'numpy', 'typer', 'plotly') if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
