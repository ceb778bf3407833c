"""Leaky memory cells that receive one pulse and then fade, far below the smallest normal number."""

import argparse
import time

import torch
from torch import nn


UNIT = 1e-34  # the charge of a pulse


class LeakyCells(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(channels))
        self.leak = nn.Parameter(torch.full((channels,), 0.85))
        self.register_buffer("weight", torch.rand(channels))

    def forward(self, pulse, ticks):
        state = pulse * self.gain
        total, loudness = state, torch.zeros_like(state)
        for _ in range(ticks):
            state = state * self.leak  # truth: denormals
            total = total + state  # truth: denormals
            loudness = loudness + state.detach() * self.weight  # truth: denormals
        return (total + loudness) / UNIT


class PulseNet(nn.Module):
    def __init__(self, channels=2048):
        super().__init__()
        self.cells = LeakyCells(channels)
        self.readout = nn.Linear(channels, 1)

    def forward(self, pulse):
        return self.readout(self.cells(pulse, ticks=150))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--fixed", action="store_true")
    opts = ap.parse_args()
    if opts.fixed:
        torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = PulseNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    start = time.perf_counter()
    for _ in range(opts.steps):
        pulse = torch.rand(32, 2048) * UNIT
        target = pulse.mean(dim=1, keepdim=True) / UNIT
        loss = nn.functional.mse_loss(model(pulse), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3e}")
    print(f"{opts.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
