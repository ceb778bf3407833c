"""A lookup table left on the CPU: activations are copied there and back in every forward pass."""

import argparse
import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, device, table_device):
        super().__init__()
        self.inp = nn.Linear(512, 1024, device=device)
        self.out = nn.Linear(1024, 10, device=device)
        self.scale = torch.rand(8192, 1024, device=table_device)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        h = (h.to(self.scale.device) * self.scale).to(x.device)  # truth: device
        return self.out(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Model(device, device if args.fixed else "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(8192, 512, device=device), torch.randint(0, 10, (8192,), device=device)
    start = time.perf_counter()
    for _ in range(args.steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
