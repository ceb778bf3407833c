"""Digits, with the whole validation set evaluated every four steps."""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def loaders():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(y)
    train_x, valid_x, train_y, valid_y = train_test_split(x, y, test_size=0.5, random_state=0)
    train = DataLoader(TensorDataset(train_x, train_y), batch_size=32, shuffle=True, drop_last=True)
    return train, DataLoader(TensorDataset(valid_x, valid_y), batch_size=32)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()  # truth: validate
    right = 0
    for x, y in loader:  # truth: validate
        right += (model(x).argmax(1) == y).sum().item()  # truth: validate
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    eval_every = 250 if args.fixed else 4
    torch.manual_seed(0)
    train, valid = loaders()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    step, best = 0, 0.0
    start = time.perf_counter()
    while step < args.steps:
        for x, y in train:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step % eval_every == 0:
                best = max(best, evaluate(model, valid))  # truth: validate
            if step == args.steps:
                break
    print(f"best accuracy {best:.3f}")
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
