"""`hasten profile script.py` finds the bottleneck of an unmodified script and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "name", "what"),
    [
        ("data", "input", "dataset"),
        pytest.param("saves", "checkpoint", "torch.save", marks=pytest.mark.long),
        pytest.param("evaluates", "validation", "", marks=pytest.mark.long),
    ],
)
def test_the_bottleneck_is_named_and_nothing_is_left(tmp_path: Path, which: str, name: str, what: str) -> None:
    for file in ("slow.py", "common.py"):
        shutil.copy(SCRIPTS / file, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "profile", "slow.py", "--json", "found.json", "--seconds", "0.2", "--", which],
        capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["bottleneck"]["name"] == name
    assert found["bottleneck"]["words"].split(".")[0] in done.stdout
    assert sum(found["phases"].values()) == pytest.approx(1.0)
    assert {"input", "validation", "checkpoint"} <= set(found["ceilings"])
    assert not what or found["where"][0]["what"] == what
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"slow.py", "common.py", "found.json"}


@pytest.mark.slow
def test_a_script_that_does_not_train_is_refused(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("import torch\nprint('nothing')\n")
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "profile", "idle.py"],
        capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Fewer than two optimizer steps were observed" in done.stderr
