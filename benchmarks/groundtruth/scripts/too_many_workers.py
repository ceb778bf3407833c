"""A small table that fits in memory, read by many worker processes."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(n=20000):
    torch.manual_seed(0)
    x = torch.randn(n, 64)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return TensorDataset(x, y)


def run(steps, workers):
    loader = DataLoader(  # truth: workers
        make_data(),
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,  # truth: workers
    )
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    start = time.perf_counter()
    while step < steps:
        for x, y in loader:  # truth: workers
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= steps:
                break
    print(f"loss {loss.item():.3f}")
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=2000)
    cli.add_argument("--fixed", action="store_true")
    given = cli.parse_args()
    run(given.steps, 0 if given.fixed else 16)
