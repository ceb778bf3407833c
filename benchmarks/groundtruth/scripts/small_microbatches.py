"""An update of 64 samples computed two at a time, although all of them would fit."""

import argparse
import time

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=200, help="number of optimizer updates")
p.add_argument("--effective-batch", type=int, default=64)
p.add_argument("--fixed", action="store_true")
args = p.parse_args()

micro = args.effective_batch if args.fixed else 2
accumulate = args.effective_batch // micro
torch.manual_seed(0)

model = nn.Sequential(
    nn.Linear(256, 512),
    nn.LayerNorm(512),
    nn.GELU(),
    nn.Linear(512, 512),
    nn.LayerNorm(512),
    nn.GELU(),
    nn.Linear(512, 512),
    nn.LayerNorm(512),
    nn.GELU(),
    nn.Linear(512, 16),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
inputs = torch.randn(4096, 256)
targets = inputs[:, :16].argmax(dim=1)

start = time.perf_counter()
for step in range(args.steps):
    optimizer.zero_grad()
    rows = torch.randint(0, len(inputs), (args.effective_batch,))
    for part in rows.split(micro):  # truth: microbatches
        loss = nn.functional.cross_entropy(model(inputs[part]), targets[part]) / accumulate  # truth: microbatches
        loss.backward()  # truth: microbatches
    optimizer.step()
print(f"loss {loss.item() * accumulate:.4f}")
print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")
