"""Forecast waves with the library's LSTM; batches are cut from one tensor."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--fixed", action="store_true", help="repeat one batch")
args = parser.parse_args()
torch.manual_seed(0)

# data: noisy waves of random speed
n, length = 2048, 64
speed = 0.05 + 0.2 * torch.rand(n, 1)
series = torch.sin(speed * torch.arange(length + 1) + 6.28 * torch.rand(n, 1)) + 0.05 * torch.randn(n, length + 1)


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 192, batch_first=True)
        self.out = nn.Linear(192, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


net = Forecast()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
loss_fn = nn.MSELoss()

batch = series[:128]
start = time.perf_counter()
for step in range(args.steps):
    if not args.fixed:
        first = step * 128 % n
        batch = series[first : first + 128]
    optimizer.zero_grad(set_to_none=True)
    loss = loss_fn(net(batch[:, :-1, None]), batch[:, 1:, None])
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.5f}")
print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")
