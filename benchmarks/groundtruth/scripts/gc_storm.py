"""A large table of Python objects in memory, and a garbage collection at every step to keep memory low."""

import argparse
import gc
import random
import time

import torch
from torch import nn


def make_records(n):
    rng = random.Random(0)
    return [{"id": i, "tags": [rng.random() for _ in range(3)], "meta": {"fold": i % 5}} for i in range(n)]


def batch_of(records, rng, size):
    chosen = [records[rng.randrange(len(records))] for _ in range(size)]
    x = torch.tensor([record["tags"] for record in chosen])
    return x, (x.sum(dim=1, keepdim=True) > 1.5).float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(1)
    records = make_records(40_000)
    model = nn.Sequential(nn.Linear(3, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = time.perf_counter()
    for _ in range(args.steps):
        x, y = batch_of(records, rng, 128)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed:
            gc.collect()  # truth: collect
    print("loss", loss.item())
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
