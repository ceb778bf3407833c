"""A plain loop, with options for different ways to end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time

import torch
from common import Rows, fingerprint, make_model
from torch import nn
from torch.utils.data import DataLoader, Sampler


class Backwards(Sampler[int]):
    def __init__(self, num: int) -> None:
        self.num = num

    def __iter__(self):
        return iter(range(self.num - 1, -1, -1))

    def __len__(self) -> int:
        return self.num


def train(options: argparse.Namespace) -> None:
    model = make_model()
    rows = Rows()
    sampler = Backwards(len(rows)) if options.sampler else None
    loader = DataLoader(rows, batch_size=8, shuffle=sampler is None, sampler=sampler, num_workers=options.workers)
    held_out = DataLoader(rows, batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        model.train()
        for step, (x, y) in enumerate(loader):
            loss = loss_fn(model(x.to("cpu")), y) / options.accumulate
            loss.backward()
            if step % options.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            print(epoch, step, loss.item())
            if epoch == 1 and step == 2:
                if options.end == "raise":
                    raise ValueError("in the middle of an epoch")
                if options.end == "exit":
                    sys.exit(3)
                if options.end == "sigint":
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(5)
                if options.end == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
        schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
        print("right", right)
        if options.save:
            torch.save(model.state_dict(), options.save)
    print(fingerprint(model))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(filename)s:%(lineno)d %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--sampler", action="store_true")
    parser.add_argument("--end", default="")
    parser.add_argument("--save", default="")
    logging.getLogger("train").info("%s %s %s", sys.argv, os.environ.get("PYTHONPATH"), os.environ.get("HASTEN_ATTACH"))
    print(__name__, sys.path[0], os.getcwd(), os.environ.get("SITE_OF_THE_USER"), "sitecustomize" in sys.modules)
    train(parser.parse_args())
