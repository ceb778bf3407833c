"""Copied from a script for a large server: many threads, regardless of the machine."""

import argparse
import time

import torch
from torch import nn

NUM_THREADS = 32


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())

    def forward(self, x):
        return x + self.layers(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    if not args.fixed:
        torch.set_num_threads(NUM_THREADS)  # truth: threads
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), *[Residual(256) for _ in range(6)], nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8192, 64)
    y = x.prod(dim=1, keepdim=True).sign()
    start = time.perf_counter()
    for step in range(args.steps):
        idx = torch.randint(len(x), (256,))
        loss = nn.functional.soft_margin_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
