"""Keep the losses for a plot at the end, together with their autograd graphs."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(20000, 128)
y = x.abs().mean(dim=1, keepdim=True)

losses = []
smooth = torch.zeros(())
start = time.perf_counter()
for step in range(args.steps):
    idx = torch.randint(0, len(x), (512,))
    loss = nn.functional.mse_loss(model(x[idx]), y[idx])
    optimizer.zero_grad()
    loss.backward(retain_graph=not args.fixed)  # truth: growth
    optimizer.step()
    if args.fixed:
        losses.append(loss.item())
        smooth = 0.9 * smooth + 0.1 * loss.detach()
    else:
        losses.append(loss)  # truth: growth
        smooth = 0.9 * smooth + 0.1 * loss  # truth: growth
print(f"mean of the last ten losses: {sum(float(item) for item in losses[-10:]) / 10:.5f}, smoothed {float(smooth):.5f}")
print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")
