"""A very deep, very narrow network: hundreds of small tensors to update."""

import argparse
import time

import torch
from torch import nn


class NarrowBlock(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.randn(width) / width) for _ in range(experts)])
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.stack(list(self.scales)).sum(dim=0)
        return x + torch.tanh(self.mix(x)) * gate


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=800)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(0)
    net = nn.Sequential(*(NarrowBlock(32, 40) for _ in range(12)), nn.Linear(32, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True, fused=a.fixed)
    x = torch.randn(1024, 32)
    y = x.cos().sum(1, keepdim=True)
    start = time.perf_counter()
    for _ in range(a.steps):
        pick = torch.randint(1024, (16,))
        loss = (net(x[pick]) - y[pick]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()  # truth: optimizer
    print("loss", loss.item())
    print(f"{a.steps} steps in {time.perf_counter() - start:.3f} s")


main()
