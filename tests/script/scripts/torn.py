"""A module whose `__hash__` fails: torch cannot list its parameters, but it trains."""

from __future__ import annotations

import torch
from torch import nn


class Torn(nn.Linear):
    def __hash__(self) -> int:
        raise TypeError("not hashable")


model = nn.Sequential(nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(0)
torn = Torn(2, 1)
for _ in range(3):
    torn(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("done")
