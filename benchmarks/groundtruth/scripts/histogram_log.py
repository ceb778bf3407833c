"""Histograms of all weights and gradients written to a log file and flushed to the disk at every step."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn


class HistogramWriter:
    def __init__(self, path, every):
        self.file = open(path, "w")
        self.every = every

    def write(self, step, model, loss):
        if step % self.every:
            return
        row = {"step": step, "loss": loss.item()}  # truth: log
        for name, p in model.named_parameters():  # truth: log
            row[name] = torch.histc(p.detach(), bins=64).tolist()  # truth: log
            row[name + ".grad"] = torch.histc(p.grad, bins=64).tolist()  # truth: log
        self.file.write(json.dumps(row) + "\n")  # truth: log
        self.file.flush()  # truth: log
        os.fsync(self.file.fileno())  # truth: log

    def close(self):
        self.file.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(5000, 32)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    with tempfile.TemporaryDirectory() as folder:
        writer = HistogramWriter(os.path.join(folder, "log.jsonl"), every=200 if args.fixed else 1)
        start = time.perf_counter()
        for step in range(args.steps):
            idx = torch.randint(0, 5000, (64,))
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.write(step, model, loss)  # truth: log
        seconds = time.perf_counter() - start
        writer.close()
    print(f"loss {loss.item():.4f}")
    print(f"{args.steps} steps in {seconds:.3f} s")


if __name__ == "__main__":
    main()
