"""A binary classifier, validated sample by sample at the end of each short epoch."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2500)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(3000, 100)
y = (x[:, ::2].sum(1) > x[:, 1::2].sum(1)).float()
train_set = TensorDataset(x[:2000], y[:2000])
valid_set = TensorDataset(x[2000:], y[2000:])
train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=500 if args.fixed else 1)  # truth: validate

model = nn.Sequential(nn.Linear(100, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1), nn.Flatten(0))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

step = 0
start = time.perf_counter()
while step < args.steps:
    model.train()
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step >= args.steps:
            break
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, labels in valid_loader:  # truth: validate
            total += criterion(model(inputs), labels).item() * len(labels)  # truth: validate
    print(f"step {step}: validation loss {total / len(valid_set):.4f}")
print(f"{step} steps in {time.perf_counter() - start:.3f} s")
