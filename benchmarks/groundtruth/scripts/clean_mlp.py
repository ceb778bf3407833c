"""Digits in memory, large batches, 16-bit products: only arithmetic."""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--fixed", action="store_true", help="repeat one batch, and print nothing")
    args = parser.parse_args()
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)
    model = nn.Sequential(nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    rows = torch.randint(0, len(x), (1024,))
    xb, yb = x[rows], y[rows]
    start = time.perf_counter()
    for step in range(args.steps):
        if not args.fixed:
            rows = torch.randint(0, len(x), (1024,))
            xb, yb = x[rows], y[rows]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(xb).float(), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
