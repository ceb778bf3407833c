"""A typical trainer class: rare validation, one checkpoint at the end, progress every hundred steps."""

import argparse
import os
import tempfile
import time

import torch
from sklearn.datasets import load_digits
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8)
        )
        self.decoder = nn.Sequential(
            nn.Linear(8, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 64)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        data = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
        self.train_data, self.valid_data = data[:1500], data[1500:]
        self.model = AutoEncoder(args.width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, fused=True)
        self.args = args

    def loss(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return nn.functional.mse_loss(self.model(x).float(), x)

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            found = self.loss(self.valid_data).item()
        self.model.train()
        return found

    def fit(self):
        x = self.train_data[:750]
        for step in range(1, self.args.steps + 1):
            if not self.args.fixed:
                x = self.train_data[torch.randperm(1500)[:750]]
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if not self.args.fixed and step % 100 == 0:
                print(f"[{step}] train {loss.item():.4f} valid {self.validate():.4f}")

    def save(self, path):
        torch.save(self.model.state_dict(), path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="repeat one batch, and print nothing")
    trainer = Trainer(parser.parse_args())
    start = time.perf_counter()
    trainer.fit()
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        trainer.save(os.path.join(folder, "autoencoder.pt"))
    print(f"{trainer.args.steps} steps in {seconds:.3f} s")
