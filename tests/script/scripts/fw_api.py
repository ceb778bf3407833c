"""A loop that watches itself with `hasten.attach` and marks the ends of its steps."""

from __future__ import annotations

import sys

import torch
from common import Rows, fingerprint, make_model
from torch import nn
from torch.utils.data import DataLoader

import hasten

model = make_model()
with hasten.attach() as watched:
    for _epoch in range(2):
        for x, y in DataLoader(Rows(), batch_size=8):
            nn.functional.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
            hasten.step()
    if sys.argv[1:] == ["raise"]:
        raise ValueError("in the block")
print(watched.profile()["steps"])
print(fingerprint(model))
