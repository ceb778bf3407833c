"""A small residual network on generated images, in the default memory layout."""

import argparse
import time

import torch
import torch.nn as nn


def conv_bn(cin, cout, groups=1, kernel=3):
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, padding=kernel // 2, groups=groups, bias=False),  # truth: convolution
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class Separable(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(conv_bn(channels, channels, groups=channels, kernel=7), conv_bn(channels, channels, kernel=1))

    def forward(self, x):
        return x + self.body(x)


class MobileLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 32), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(*[Separable(32) for _ in range(3)])
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    images = torch.rand(256, 3, 64, 64)
    labels = torch.randint(0, 5, (256,))
    model = MobileLike()
    if args.fixed:
        images = images.to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    start = time.perf_counter()
    for step in range(args.steps):
        first = step * 32 % 256
        loss = nn.functional.cross_entropy(
            model(images[first : first + 32]), labels[first : first + 32]
        )  # truth: convolution
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
