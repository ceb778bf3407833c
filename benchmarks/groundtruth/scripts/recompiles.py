"""A compiled model that receives another length at every step."""

import argparse
import time

import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.recompile_limit = 512  # the warnings were annoying


class Mixer(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.inp = nn.Linear(8, dim)
        self.hidden = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x = torch.tanh(self.inp(x))
        x = torch.tanh(self.hidden(x)) + x
        return self.out(x.mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    net = Mixer()
    # this machine has no compiler for kernels, so only graphs are captured
    model = torch.compile(net, backend="aot_eager", dynamic=args.fixed)  # truth: recompiles
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    start = time.perf_counter()
    for step in range(args.steps):
        length = 16 + step % 200
        x = torch.randn(32, length, 8)
        y = x.sum(dim=(1, 2), keepdim=True)[:, 0] / length
        loss = (model(x) - y).square().mean()  # truth: recompiles
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
