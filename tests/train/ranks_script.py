"""Train a token-weighted job in the process group started by torchrun, and save the results of each rank.

Usage: torchrun --nproc-per-node 2 -m tests.train.ranks_script FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.live import LiveJob, LoaderSettings
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.ranks import current_ranks
from hasten.train.validate import HeldOut
from tests.train.jobs import CPU, Plain, Tokens

UPDATES = 10


class Uneven(Tokens):
    """17 samples in batches of 4: the last batch has one sample, so one of two ranks gets none. One layer is never used."""

    num_samples = 17
    accumulation = 2
    clip_norm = 1.0

    def model(self) -> nn.Module:
        torch.manual_seed(8)
        model = super().model()
        model.unused = nn.Linear(2, 2).double()
        return model

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        (tokens,) = batch
        assert isinstance(model, nn.Sequential)
        logits = model[1](model[0](tokens))
        each = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0, reduction="sum")
        return hasten.Loss(each, (tokens != 0).sum())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)  # would decay the unused part


class One(Plain):
    """A single held-out sample, so one of two ranks has nothing to measure."""

    def valid_data(self) -> Dataset[Any] | None:
        return TensorDataset(torch.ones(1, 5), torch.ones(1, 1))

    def metric(self, model: nn.Module, batch: Any) -> dict[str, hasten.Mean]:
        return {"error": hasten.Mean((model(batch[0]) - batch[1]).abs().sum(), len(batch[0]))}


class Overflow(Plain):
    """A job in which the gradient of one rank is infinite once, so all ranks must skip that update."""

    batch_size = 2


def train(workers: int) -> dict[str, Any]:
    """Train `Uneven`. One process and two ranks must give the same numbers."""
    live = build(Uneven(), device=CPU)
    live.loader = LoaderSettings(num_workers=workers, persistent=workers > 0)
    loop = Loop(live)
    loop.run(UPDATES)
    loop.close()
    return {"losses": loop.losses, "weights": [p.detach() for p in live.model.parameters()]}


def overflow() -> dict[str, Any]:
    """Train with an infinite gradient on the second rank in the second update."""
    live: LiveJob = build(Overflow(), device=CPU)
    live.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    loop = Loop(live)
    loop.run(1)
    if dist.get_rank() == 1:
        handle = next(live.model.parameters()).register_hook(lambda grad: grad * torch.inf)
    loop.run(1)
    if dist.get_rank() == 1:
        handle.remove()
    loop.run(2)
    return {"skipped": loop.skipped, "weights": [p.detach() for p in live.model.parameters()]}


def main(folder: Path) -> None:
    """Run everything in a process group, and save the results by rank."""
    dist.init_process_group("gloo")
    result: dict[str, Any] = {"plain": train(0), "workers": train(1), "overflow": overflow()}
    result["held_out"] = HeldOut(build(One(), device=CPU)).measure()
    ranks, rank = current_ranks(), dist.get_rank()
    seconds = 1.0 + 2.0 * rank
    result["slowest"] = ranks.slowest([seconds, -seconds])
    result["straggler"], result["agreed"] = ranks.straggler(seconds), ranks.agreed(seconds)
    torch.save(result, folder / f"rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
