"""Scripts of Lightning, Accelerate and Transformers, and one that uses `hasten.attach`, all attached from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hasten.core.plan import Plan
from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone

SCRIPTS = Path(__file__).parent / "scripts"
CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "lightning": (("fw_lightning.py",), 11),
    "lightning, accumulation in bfloat16": (("fw_lightning.py", "--accumulate", "2", "--precision", "bf16-mixed"), 5),
    "accelerate, accumulation in bfloat16": (("fw_accelerate.py", "--accumulate", "2", "--precision", "bf16"), 5),
    "transformers, accumulation in bfloat16": (("fw_transformers.py", "--accumulate", "2", "--precision", "bf16"), 5),
    "our own lines": (("fw_api.py",), 11),
}
"""Script and arguments, and the number of observed steps, which is one fewer than the script makes."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=110, check=False, cwd=SCRIPTS,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if "bfloat16" in case or case == "lightning" else ()) for case in CASES],
)
def test_a_framework_trains_as_without_us(tmp_path: Path, case: str) -> None:
    command, steps = CASES[case]
    seen = tmp_path / "seen.json"
    with ThreadPoolExecutor() as pool:
        others = pool.submit(run, *command)
        done = run("-m", "hasten.script", "--json", str(seen), *command)
        alone = others.result()
    assert alone.returncode == 0, alone.stderr
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr
    assert "hasten" not in done.stderr
    assert json.loads(seen.read_text())["0"]["steps"] == steps


@pytest.mark.long
@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_a_plan_of_exact_techniques_gives_the_same_weights(tmp_path: Path, framework: str) -> None:
    plan = tmp_path / "hasten.toml"
    Plan(optimizations=(LoaderWorkers(num_workers=1), ZeroGradToNone(), BackgroundCheckpoint())).save(plan)
    with ThreadPoolExecutor() as pool:
        others = pool.submit(run, f"fw_{framework}.py")
        done = run("-m", "hasten", "run", "--plan", str(plan), f"fw_{framework}.py")
        alone = others.result()
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr


@pytest.mark.long
def test_a_block_that_fails_in_an_attached_script_says_what_it_says_alone(tmp_path: Path) -> None:
    alone, done = run("fw_api.py", "raise"), run("-m", "hasten.script", "fw_api.py", "raise")
    assert alone.returncode == 1
    assert alone.stderr.endswith("ValueError: in the block\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, alone.stdout, alone.stderr)


def profiled(tmp_path: Path, framework: str, slow: str) -> dict[str, Any]:
    """Return the profile of a framework's script that is slow in one place."""
    path = tmp_path / "found.json"
    done = run(
        "-m", "hasten", "profile", f"fw_{framework}.py", "--json", str(path), "--seconds", "0.3",
        "--", "--slow", slow, "--epochs", "2000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    assert sum(found["phases"].values()) == pytest.approx(1.0)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "slow", "bottleneck"),
    [
        ("lightning", "data", "input"),
        ("accelerate", "data", "input"),
        ("transformers", "data", "input"),
        ("lightning", "saves", "checkpoint"),
        ("transformers", "valid", "validation"),
    ],
)
def test_the_bottleneck_of_a_framework_is_named(tmp_path: Path, framework: str, slow: str, bottleneck: str) -> None:
    found = profiled(tmp_path, framework, slow)
    assert found["bottleneck"]["name"] == bottleneck, found
    if slow == "data":
        assert found["where"][0]["what"] == "dataset"
        assert found["where"][0]["file"].endswith(f"fw_{framework}.py")
    else:
        assert f"fw_{framework}.py" in found["bottleneck"]["words"]
