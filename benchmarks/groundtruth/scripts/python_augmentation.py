"""Digits with random shifts, flips and noise, made pixel by pixel in Python."""

import argparse
import random
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


def augment(image):
    """Shift by up to two pixels and add noise."""
    dx, dy = random.randint(-2, 2), random.randint(-2, 2)  # truth: augment
    out = torch.zeros(16, 16)  # truth: augment
    for y in range(16):  # truth: augment
        for x in range(16):  # truth: augment
            if 0 <= y + dy < 16 and 0 <= x + dx < 16:  # truth: augment
                out[y, x] = image[y + dy][x + dx] + random.gauss(0, 0.05)  # truth: augment
    return out.unsqueeze(0)  # truth: augment


class AugmentedDigits(Dataset):
    def __init__(self, augmented=True):
        digits = load_digits()
        images = digits.images.repeat(2, axis=1).repeat(2, axis=2) / 16.0
        self.images = images.tolist() if augmented else torch.tensor(images, dtype=torch.float32).unsqueeze(1)
        self.targets = digits.target
        self.augmented = augmented

    def __getitem__(self, i):  # truth: augment
        if self.augmented:
            return augment(self.images[i]), self.targets[i]  # truth: augment
        return self.images[i], self.targets[i]

    def __len__(self):
        return len(self.images)


def augment_batch(images):
    """Augment a whole batch at once."""
    n = len(images)
    shift = torch.randint(-2, 3, (n, 2)) / 8.0
    theta = torch.eye(2, 3).repeat(n, 1, 1)
    theta[:, :, 2] = shift
    images = F.grid_sample(images, F.affine_grid(theta, images.shape, align_corners=False), align_corners=False)
    return images + 0.05 * torch.randn_like(images)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--fixed", action="store_true")
opt = parser.parse_args()
random.seed(1)
torch.manual_seed(1)

train_loader = DataLoader(AugmentedDigits(augmented=not opt.fixed), batch_size=32, shuffle=True)
net = Net()
optim = torch.optim.Adam(net.parameters(), lr=1e-3)
done = 0
begin = time.time()
while done < opt.steps:
    for x, y in train_loader:
        if opt.fixed:
            x = augment_batch(x)
        optim.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optim.step()
        done += 1
        if done >= opt.steps:
            break
print("final loss", loss.item())
print(f"{done} steps in {time.time() - begin:.3f} s")
