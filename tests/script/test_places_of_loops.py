"""Time is attributed to lines of the user's code, even if torch itself does the work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(2048, 4), torch.randn(2048, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, 64):
            model(x)  # validation
    model.train()

if __name__ == "__main__":
    for epoch in range(3):
        for x, y in DataLoader(data, 16, num_workers=WORKERS):  # loader
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()  # optimizer
        evaluate()
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_every_line_is_that_of_the_script(tmp_path: Path, workers: int) -> None:
    text = SCRIPT.replace("WORKERS", str(workers))
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, "-m", "hasten.script", "--json", "found.json", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["0"]
    lines = {name: number for number, line in enumerate(text.splitlines(), 1) if (name := line.partition("  # ")[2])}
    told = {what: (file, line) for what, file, line, _, _ in found["places"]}
    wanted = {name: ("train.py", line) for name, line in lines.items()}
    if workers:
        wanted["start of workers"] = wanted["loader"]
    assert {what: (Path(file).name, line) for what, (file, line) in told.items()} == wanted
