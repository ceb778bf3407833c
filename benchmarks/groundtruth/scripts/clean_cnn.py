"""A convolutional network on generated images: channels last, 16-bit arithmetic."""

import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(128, 4)

    def forward(self, x):
        return self.classifier(self.features(x).mean(dim=(2, 3)))


def pictures(n=512):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (n,), generator=g)
    images = torch.rand(n, 3, 48, 48, generator=g)
    images[:, 0, :24] += (labels % 2).view(-1, 1, 1)
    images[:, 1, 24:] += (labels // 2).view(-1, 1, 1)
    return TensorDataset(images, labels)


def train(args):
    torch.manual_seed(0)
    loader = DataLoader(pictures(), batch_size=32, shuffle=True)
    feed = [next(iter(loader))] * 16 if args.fixed else loader
    model = ConvNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for images, labels in feed:
            images = images.to(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images).float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    print("loss", loss.item())
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fixed", action="store_true", help="repeat one batch")
    train(parser.parse_args())
