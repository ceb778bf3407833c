"""Reports its loss at every step to the tracker named by the first argument. Uses the stand-ins next to this file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from common import Rows, make_model
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent / "standins"))
WHICH = sys.argv[1]

if WHICH == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter()
elif WHICH == "tensorboardX":
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(log_dir="runs/mine")
elif WHICH == "wandb":
    import wandb

    wandb.init()


def main() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for _ in range(1000):
        for x, y in DataLoader(Rows(), batch_size=8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if WHICH == "tensorboard":
                writer.add_scalar("loss", loss.detach(), step)
            elif WHICH == "tensorboardX":
                writer.add_scalars("losses", {"one": 1.0, "two": 2.0}, step)
            elif WHICH == "wandb":
                wandb.log({"loss": 1.0})


if __name__ == "__main__":
    main()
