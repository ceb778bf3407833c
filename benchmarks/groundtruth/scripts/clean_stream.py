"""A stream of generated signals, created one batch at a time, for a one-dimensional convolutional network."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Signals(IterableDataset):
    """Endless batches [batch, 4, 256] with the class of each signal."""

    def __init__(self, batch, frozen):
        self.batch, self.frozen = batch, frozen

    def make(self):
        kinds = torch.randint(0, 3, (self.batch,))
        wave = torch.sin(torch.arange(256) * (0.1 + 0.1 * kinds.view(-1, 1, 1)))
        return wave + 0.5 * torch.randn(self.batch, 4, 1), kinds

    def __iter__(self):
        item = self.make()
        while True:
            yield item
            if not self.frozen:
                item = self.make()


def conv(cin, cout):
    return [nn.Conv1d(cin, cout, 5, padding=2), nn.GELU()]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--fixed", action="store_true", help="repeat one batch")
    args = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Signals(64, args.fixed), batch_size=None)
    model = nn.Sequential(
        *conv(4, 64), *conv(64, 96), *conv(96, 96), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, fused=True)
    start = time.perf_counter()
    for step, (signals, kinds) in enumerate(loader, start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(signals).float(), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == args.steps:
            break
    print("loss", loss.item())
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")
