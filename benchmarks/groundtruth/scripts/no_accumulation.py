"""Two samples per update, because more did not fit once; the optimizer updates the whole model each time."""

import argparse
import time

import torch
from torch import nn


class BagOfWords(nn.Module):
    def __init__(self, words=30000, dim=192):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.head = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 20))

    def forward(self, ids):
        return self.head(self.embed(ids).mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250, help="number of batches")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    accumulate = 16 if args.fixed else 1
    torch.manual_seed(0)
    ids = torch.randint(0, 30000, (2000, 64))
    labels = ids[:, 0] % 20
    model = BagOfWords()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = time.perf_counter()
    optimizer.zero_grad()
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, 2000, (args.batch_size,))
        loss = nn.functional.cross_entropy(model(ids[rows]), labels[rows]) / accumulate
        loss.backward()
        if step % accumulate == 0:
            optimizer.step()  # truth: optimizer
            optimizer.zero_grad()  # truth: optimizer
    print("loss", loss.item() * accumulate)
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
