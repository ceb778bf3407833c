"""A wide perceptron in plain float32."""

import argparse
import contextlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class WideNet(nn.Module):
    def __init__(self, d_in=256, d=2048, classes=10):
        super().__init__()
        self.inp = nn.Linear(d_in, d)
        self.mid = nn.ModuleList([nn.Linear(d, d) for _ in range(2)])
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        x = F.relu(self.inp(x))
        for layer in self.mid:
            x = F.relu(layer(x))  # truth: matmul
        return self.out(x)


def train(steps, fixed):
    torch.manual_seed(0)
    model = WideNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    features = torch.randn(8192, 256)
    labels = features[:, :10].argmax(dim=1)
    t = time.perf_counter()
    for _ in range(steps):
        batch = torch.randint(0, 8192, (512,))
        context = torch.autocast("cpu", dtype=torch.bfloat16) if fixed else contextlib.nullcontext()
        with context:
            logits = model(features[batch])  # truth: matmul
            loss = F.cross_entropy(logits.float(), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss={loss.item():.4f}")
    print(f"{steps} steps in {time.perf_counter() - t:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fixed", action="store_true")
    options = parser.parse_args()
    train(options.steps, options.fixed)
