"""A plain training loop that records the end time of each step in a file that others can read while it runs.

`steps.py --notes FILE [--width N] [--depth N] [--batch N]`. The file starts with the number of steps and the process id
(64-bit integers). The end times of the last steps follow in seconds (64-bit floats, `time.perf_counter`), in a ring buffer.
The script runs until it is killed. The loop is a common one: a loader, forward, loss, backward, step, and an occasional read
of the loss.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HEAD, ROOM = 2, 1 << 14
"""Number of integers before the times, and capacity of the times."""
READ_EVERY = 50


class Notes:
    """The file as the script writes it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        self._head, self._times = memory.cast("q"), memory.cast("d")
        self._head[1] = os.getpid()
        self._count = 0

    def mark(self) -> None:
        """Record the end of a step: first the time, then the count, so that counted times are always present."""
        self._times[HEAD + self._count % ROOM] = time.perf_counter()
        self._count += 1
        self._head[0] = self._count


def main() -> None:
    """Train until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    notes = Notes(args.notes)
    torch.manual_seed(0)
    x = torch.randn(64 * args.batch, 64)
    data = TensorDataset(x, x.square().mean(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    layers: list[nn.Module] = [nn.Linear(64, args.width), nn.ReLU()]
    for _ in range(args.depth):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step, total = 0, 0.0
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if step % READ_EVERY == 0:
                total += loss.item()
            notes.mark()


if __name__ == "__main__":
    main()
