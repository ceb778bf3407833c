"""One file per sample, on a share that takes time to open each."""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

OPEN_SECONDS = 0.001  # time to open a file on a network share; this machine's own disk is faster


def write_files(folder, n):
    rng = np.random.default_rng(0)
    for i in range(n):
        np.save(os.path.join(folder, f"{i:05d}.npy"), rng.standard_normal(512).astype("float32"))


class FileDataset(Dataset):
    def __init__(self, folder, in_memory=False):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        self.memory = [torch.from_numpy(np.load(path)) for path in self.paths] if in_memory else None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):  # truth: disk
        if self.memory is not None:
            x = self.memory[index]
        else:
            time.sleep(OPEN_SECONDS)  # truth: disk
            x = torch.from_numpy(np.load(self.paths[index]))  # truth: disk
        return x, x[:4].sum().view(1)


def fit(loader, steps):
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, start = 0, time.perf_counter()
    while step < steps:
        for x, y in loader:  # truth: disk
            loss = nn.functional.l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
    print("loss", loss.item())
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        write_files(root, 1024)
        fit(DataLoader(FileDataset(root, in_memory=args.fixed), batch_size=32, shuffle=True), args.steps)
