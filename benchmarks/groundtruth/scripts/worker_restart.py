"""Many short epochs over the digits; the workers are restarted for each."""

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--fixed", action="store_true")


class DigitsDataset(Dataset):
    def __init__(self):
        self.x, self.y = load_digits(return_X_y=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        x = np.sqrt(self.x[idx] / 16.0)
        return torch.from_numpy(x.astype("float32")), int(self.y[idx])


def train_epoch(model, loader, optimizer, budget):
    model.train()
    used = 0
    for data, target in loader:  # truth: restart
        if used == budget:
            break
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        used += 1
    return used, loss.item()


def main():
    args = parser.parse_args()
    torch.manual_seed(3)
    loader = DataLoader(  # truth: restart
        DigitsDataset(),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        persistent_workers=args.fixed,  # truth: restart
    )
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10), nn.LogSoftmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters())
    left, epoch = args.steps, 0
    start = time.perf_counter()
    while left:
        used, loss = train_epoch(model, loader, optimizer, left)
        left -= used
        epoch += 1
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {loss:.3f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
