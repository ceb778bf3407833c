"""The package as a user installs it: the wheel, alone in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = "images,tokenizers,lmdb,redis,remote,recipes,eight-bit"

SCRIPT = """\
import torch

data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 4, (512,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(40):
    for features, labels in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
"""


def run(*command: str | Path, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HASTEN", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=600, check=False, cwd=cwd, env=environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("hasten-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "src/hasten"], capture_output=True, text=True, check=True, cwd=ROOT)
    expected = {name.removeprefix("src/") for name in tracked.stdout.split() if (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("hasten/")}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/entry_points.txt"))
    assert "hasten/py.typed" in expected
    assert expected <= packed
    assert "hasten = hasten.cli.main:main" in metadata


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    python, hasten = environment / "bin" / "python", environment / "bin" / "hasten"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "-q", "-c", constraints, "torch==2.13.0", cwd=tmp_path)
    run(python, "-m", "pip", "install", "-q", "-c", constraints, wheel, cwd=tmp_path)

    assert run(hasten, "--version", cwd=tmp_path).startswith("hasten ")
    assert json.loads(run(hasten, "doctor", "--json", cwd=tmp_path))
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    run(hasten, "profile", "train.py", "--seconds", "20", "--json", "profile.json", cwd=tmp_path)
    assert json.loads((tmp_path / "profile.json").read_bytes())["steps"] > 100
    run(python, "-m", "pip", "install", "-q", "-c", constraints, f"{wheel}[{EXTRAS}]", cwd=tmp_path)
    assert "detection" in run(hasten, "recipes", "list", cwd=tmp_path)
