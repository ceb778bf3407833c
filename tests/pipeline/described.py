"""Pipelines for tests: small stages in a folder of their own."""

from __future__ import annotations

from pathlib import Path

from hasten.pipeline.description import Pipeline, read_pipeline

STAGES = """\
import os
from pathlib import Path

import torch

import hasten


class Stage(hasten.Job):
    batch_size, epochs, seed = 8, int(os.environ.get("EPOCHS", "1")), 3

    def model(self):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        if start := os.environ.get("START"):
            model.load_state_dict(torch.load(start, weights_only=True))
        return model

    def train_data(self):
        x = torch.randn(160, 8, generator=torch.Generator().manual_seed(int(os.environ.get("SEED", "0"))))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

    def valid_data(self):
        x = torch.randn(40, 8, generator=torch.Generator().manual_seed(99))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

    def random_transform(self, sample):
        return sample[0] + 0.1 * torch.randn(8), sample[1]

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.02)

    def loss(self, model, batch):
        if pause := os.environ.get("PAUSE"):
            import time

            time.sleep(float(pause))
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""
COUNTED = """\
import os, pathlib, sys, time

with open(os.environ["COUNT"], "a") as file:
    file.write("x")
time.sleep(float(os.environ.get("PAUSE", "0")))
pathlib.Path(sys.argv[1], "text.txt").write_text(pathlib.Path("source.txt").read_text().strip())
"""
JUDGE = """\
import json, pathlib, sys, torch

weights = torch.load(sys.argv[1], weights_only=True)["weight"]
error = float((weights - 1).abs().max())
pathlib.Path(sys.argv[2], "metrics.json").write_text(json.dumps({"error": error}))
"""


def described(folder: Path, text: str) -> Pipeline:
    """Write a description, with the files that its stages use, and read it."""
    folder.mkdir(exist_ok=True)
    for name, content in (("stages.py", STAGES), ("counted.py", COUNTED), ("judge.py", JUDGE), ("source.txt", "hello\\n")):
        if not (folder / name).exists():
            (folder / name).write_text(content, encoding="utf-8")
    (folder / "pipeline.toml").write_text(f"schema = 1\n{text}", encoding="utf-8")
    return read_pipeline(folder)


def command(name: str, *lines: str, needs: str = "") -> str:
    """Return a stage that counts its runs in `NAME.count`."""
    found = [
        f"[stages.{name}]", f"needs = {needs.split()}",
        'command = ["python", "counted.py", "{out}"]', 'gives = ["text.txt"]',
        f'env = {{ COUNT = "{name}.count" }}', 'reads = ["source.txt"]', "cores = 1", 'memory = "100 MiB"', *lines,
    ]  # fmt: skip
    return "\n".join(found) + "\n"
