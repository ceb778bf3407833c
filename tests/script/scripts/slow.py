"""Loops with one known cost each, selected by the first argument. They train until they are terminated."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from common import Rows, make_model
from torch import nn
from torch.utils.data import DataLoader

WHICH = sys.argv[1]


class Slow(Rows):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if WHICH == "data":
            time.sleep(0.002)
        return super().__getitem__(index)


def main() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader, held_out = DataLoader(Slow(), batch_size=8), DataLoader(Rows(), batch_size=8)
    for _ in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if WHICH == "saves":
                torch.save([torch.zeros(1_000_000), model.state_dict()], "checkpoint.pt")
            if WHICH == "prints":
                for line in range(2000):
                    print(line)
        if WHICH == "evaluates":
            model.eval()
            with torch.no_grad():
                for x, _ in held_out:
                    model(x)
                    time.sleep(0.01)
            model.train()
    Path("finished").touch()


if __name__ == "__main__":
    main()
