"""Regression on records that a remote store delivers with a delay; a single worker fetches them."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LATENCY = 0.002  # seconds per request to the store


class RemoteRecords(Dataset):
    def __init__(self, n=4096):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(n, 256, generator=g)
        self.y = self.x[:, :8].sum(1, keepdim=True).tanh()

    def fetch(self, key):
        time.sleep(LATENCY)  # truth: fetch
        return self.x[key], self.y[key]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, key):  # truth: fetch
        return self.fetch(key)  # truth: fetch


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--fixed", action="store_true")
    return p.parse_args()


def train(args):
    torch.manual_seed(0)
    workers = 6 if args.fixed else 1
    loader = DataLoader(
        RemoteRecords(),
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,  # truth: fetch
    )
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_fn = nn.MSELoss()
    step = 0
    t0 = time.perf_counter()
    while True:
        for x, y in loader:  # truth: fetch
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                print(f"loss: {loss.item():.5f}")
                print(f"{step} steps in {time.perf_counter() - t0:.3f} s")
                return


if __name__ == "__main__":
    train(get_args())
