"""A table in memory, split row by row and stacked again."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def batches(x, y, size, whole):
    """Yield batches endlessly, in random order."""
    if not whole:
        loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)  # truth: collate
        while True:
            yield from loader  # truth: collate
    while True:
        for rows in torch.randperm(len(x)).split(size):
            yield x[rows], y[rows]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1600)
    ap.add_argument("--batch-size", type=int, default=1024)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    x = torch.randn(32768, 20)
    y = (x**2).sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(20, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    feed = batches(x, y, args.batch_size, args.fixed)
    start = time.perf_counter()
    for _ in range(args.steps):
        inputs, targets = next(feed)  # truth: collate
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
