"""Job files for trials. They are real files, because a trial process loads its job by path."""

from __future__ import annotations

from pathlib import Path

import psutil

HEAD = """
import os, resource, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset
import hasten

HERE = Path(__file__).parent
torch.set_num_threads(1)


class Rows(Dataset):
    def __init__(self, num):
        self.x = torch.randn(num, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index].sum(dim=0, keepdim=True)


class Good(hasten.Job):
    batch_size = 8
    epochs = 50
    quality = hasten.Quality(margin=1.0)

    def model(self):
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def train_data(self):
        return Rows(256)

    def valid_data(self):
        return Rows(24)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
"""


def write_job(folder: Path, body: str = "", name: str = "job_under_trial.py") -> str:
    """Write a job file and return its target: the class `J`, or the default job if there is no body."""
    path = folder / name
    path.write_text(HEAD + "\n\n" + body, encoding="utf-8")
    return f"{path}:{'J' if body else 'Good'}"


def children() -> set[int]:
    """Return the ids of all running processes that this process started."""
    return {child.pid for child in psutil.Process().children(recursive=True) if is_running(child.pid)}


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
