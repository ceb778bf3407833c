"""A deep residual network whose gradient norms are read, layer by layer, at every step."""

import argparse
import time

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.a = nn.Linear(dim, dim)
        self.b = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


class Trainer:
    def __init__(self, args):
        torch.manual_seed(0)
        self.args = args
        self.model = nn.Sequential(*[Block(64) for _ in range(16)], nn.Linear(64, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(2048, 64)
        self.y = self.x.pow(2).sum(1, keepdim=True) / 64
        self.history = []

    def log(self, step, loss):
        if self.args.fixed and step % 50:
            return
        row = {"loss": loss.item()}  # truth: item
        for name, p in self.model.named_parameters():  # truth: item
            row[f"grad/{name}"] = p.grad.norm().item()  # truth: item
            row[f"weight/{name}"] = p.detach().norm().item()  # truth: item
            row[f"mean/{name}"] = p.grad.abs().mean().item()  # truth: item
            row[f"max/{name}"] = p.grad.abs().max().item()  # truth: item
            row[f"min/{name}"] = p.grad.abs().min().item()  # truth: item
        self.history.append(row)  # truth: item

    def fit(self):
        start = time.perf_counter()
        for step in range(self.args.steps):
            idx = torch.randint(0, len(self.x), (16,))
            loss = nn.functional.mse_loss(self.model(self.x[idx]), self.y[idx])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.log(step, loss)  # truth: item
        print(f"kept {len(self.history)} rows, last loss {self.history[-1]['loss']:.4f}")
        print(f"{self.args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--fixed", action="store_true")
    Trainer(ap.parse_args()).fit()
