"""Shared by the scripts: a small model, its data, and a fingerprint of the weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from torch.utils.data import Dataset


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, num: int = 48) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(num, 8, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def fingerprint(model: nn.Module) -> str:
    hashed = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hashed.update(name.encode())
        hashed.update(tensor.detach().float().numpy().tobytes())
    return hashed.hexdigest()
