"""Two problems at once: records parsed from JSON at every access, and tensors printed at every step."""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class JsonRecords(Dataset):
    def __init__(self, parsed):
        g = torch.Generator().manual_seed(0)
        table = torch.randn(2000, 128, generator=g)
        self.lines = [json.dumps({"x": row.tolist(), "y": float(row[:3].sum() > 0)}) for row in table]
        self.parsed = [self.parse(line) for line in self.lines] if parsed else None

    def parse(self, line):
        record = json.loads(line)  # truth: decode
        return torch.tensor(record["x"]), torch.tensor(record["y"])  # truth: decode

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):  # truth: decode
        return self.parsed[i] if self.parsed else self.parse(self.lines[i])  # truth: decode


def report(step, loss, logits, labels):
    print("step", step, "loss", loss.item())  # truth: print
    print("logits", logits.detach().view(-1)[:40])  # truth: print
    print("labels", labels[:40])  # truth: print


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(JsonRecords(parsed=args.fixed), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    start = time.perf_counter()
    while step < args.steps:
        for x, y in loader:  # truth: decode
            optimizer.zero_grad()
            logits = model(x)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
            loss.backward()
            optimizer.step()
            if not args.fixed or step % 100 == 0:
                report(step, loss, logits, y)  # truth: print
            step += 1
            if step == args.steps:
                break
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
