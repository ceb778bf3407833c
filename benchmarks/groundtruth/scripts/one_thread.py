"""A leftover line from a cluster's wiki: one thread per process."""

import argparse
import time

import torch

cli = argparse.ArgumentParser()
cli.add_argument("--steps", type=int, default=120)
cli.add_argument("--fixed", action="store_true")
cli = cli.parse_args()

torch.set_num_threads(2 if cli.fixed else 1)  # truth: threads
torch.manual_seed(0)

x = torch.randn(4096, 512)
w = torch.randn(512, 512) / 512**0.5
y = torch.tanh(x @ w)

layers = []
for _ in range(4):
    layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
net = torch.nn.Sequential(*layers, torch.nn.Linear(512, 512))
sgd = torch.optim.SGD(net.parameters(), lr=0.05)

start = time.perf_counter()
for step in range(cli.steps):
    part = slice(step % 4 * 1024, (step % 4 + 1) * 1024)
    loss = (net(x[part]) - y[part]).square().mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
print("loss", float(loss))
print(f"{cli.steps} steps in {time.perf_counter() - start:.3f} s")
