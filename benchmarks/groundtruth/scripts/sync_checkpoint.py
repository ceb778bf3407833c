"""Save a full checkpoint every few steps, to be safe."""

import argparse
import os
import tempfile
import time

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(128, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 1))


def save_checkpoint(folder, step, model, optimizer):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}  # truth: save
    torch.save(state, os.path.join(folder, "checkpoint.pt"))  # truth: save


def main(args):
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = torch.randn(4096, 128)
    target = data.sin().mean(1, keepdim=True)
    every = args.steps + 1 if args.fixed else args.save_every
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, args.steps + 1):
            idx = torch.randint(len(data), (16,))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data[idx]), target[idx])
            loss.backward()
            optimizer.step()
            if step % every == 0:
                save_checkpoint(folder, step, model, optimizer)  # truth: save
    print("loss", float(loss))
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--fixed", action="store_true")
    main(parser.parse_args())
