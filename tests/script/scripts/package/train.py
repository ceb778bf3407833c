"""Imports its data relatively, and reads a line from stdin."""

from __future__ import annotations

import sys

import torch

from .rows import X


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    print(sys.argv[1:], sys.stdin.readline(), __package__, model.weight.tolist())


if __name__ == "__main__":
    main()
