"""Train a digit classifier from images that are stored as text and decoded at every access."""

import argparse
import time
import zlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


def encode(image):
    rows = "\n".join(" ".join(str(int(value)) for value in row) for row in image)
    return zlib.compress(rows.encode())


def decode(blob):
    rows = zlib.decompress(blob).decode().splitlines()  # truth: decode
    image = []  # truth: decode
    for row in rows:  # truth: decode
        image.append([float(value) / 16.0 for value in row.split()])  # truth: decode
    return torch.tensor(image).unsqueeze(0)  # truth: decode


class Digits(Dataset):
    def __init__(self, cached):
        images, self.labels = load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
        self.blobs = [encode(image) for image in images]
        self.cache = [decode(blob) for blob in self.blobs] if cached else None

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, index):  # truth: decode
        image = self.cache[index] if self.cache else decode(self.blobs[index])  # truth: decode
        return image, int(self.labels[index])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(Digits(cached=args.fixed), batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 12 * 12, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    step, start = 0, time.perf_counter()
    while step < args.steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
