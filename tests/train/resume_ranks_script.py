"""Stop and resume runs of several ranks, and save the results: `launch(WORLD, [python, -m, THIS, FOLDER])`.

A group of two also writes the checkpoint that groups of one and three resume from, and resumes that of one process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hasten.core.errors import DataError
from hasten.core.optimization import Optimization
from hasten.optimizations.gradient_buckets import GradientBuckets
from hasten.optimizations.sharding import Sharding
from hasten.train.checkpoints.resume import resume_run
from hasten.train.checkpoints.saver import Pace, Saver
from hasten.train.checkpoints.shards import StoredTensor, shard_of
from hasten.train.loop import Loop
from hasten.train.process_group import end_rank, join_group, leave_group
from tests.optimizations.contract import make_loop
from tests.optimizations.ranks_script import Stack

STOP, END = 3, 8
"""Numbers of updates. An epoch has two, so the run stops within its second epoch."""
PLANS: dict[str, tuple[Optimization, ...]] = {"plain": (), "buckets": (GradientBuckets(),), "shards": (Sharding(),)}


class Elastic(Stack):
    """A token-weighted job with 17 samples in batches of 4 and windows of 3.

    The last window of an epoch is partial, and its last batch leaves a rank without a sample. Any number of ranks must give
    the same numbers.
    """


class Noisy(Elastic):
    """The same with state that differs by rank: dropout and a running statistic. Also with a schedule, and in float32."""

    def model(self) -> nn.Module:
        model = super().model().float()
        model.add_module("noise", _Noise())
        model.register_forward_hook(lambda _module, _inputs, output: model.noise(output))  # type: ignore[operator]
        return model

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler | None:
        return LambdaLR(optimizer, lambda update: 1 / (1 + 0.1 * update))


class _Noise(nn.Module):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.detach().mean()
        out: torch.Tensor = self.dropout(x)
        return out


def state(loop: Loop) -> dict[str, torch.Tensor]:
    """Return the unsharded weights, and this rank's own buffers."""
    return {name: value.detach().clone() for name, value in loop.live.whole_state().items()}


def stopped_and_taken_up(make: Any, folder: Path) -> dict[str, Any]:
    """Return losses and weights of a run that was never stopped, and of one that was stopped and resumed."""
    whole = make()
    whole.run(END)
    first = make()
    with Saver(first, folder, Pace()) as saver:
        first.run(STOP)
        saver.save(wait=True)
    then = state(first)
    again = make()
    torch.rand(100)  # random numbers drawn in the meantime
    saved = resume_run(again, folder, {}, print)
    assert saved is not None
    assert torch.equal(
        torch.cat([v.flatten() for v in then.values()]), torch.cat([v.flatten() for v in state(again).values()])
    )
    again.run(END - STOP)
    return {
        "whole": {"losses": whole.losses[STOP:], "weights": state(whole), "samples": whole.position.samples},
        "again": {"losses": again.losses, "weights": state(again), "samples": again.position.samples},
        "then": then,
    }


def taken_up(folder: Path, plan: str) -> dict[str, Any]:
    """Resume from the checkpoint of another group."""
    loop = make_loop(Elastic(), *PLANS[plan])
    assert resume_run(loop, folder, {}, lambda _: None) is not None
    then = state(loop)
    loop.run(END - STOP)
    return {"then": then, "losses": loop.losses, "weights": state(loop), "samples": loop.position.samples}


def boxes() -> dict[str, Any]:
    """Return the shards of tensors that are not sharded by rows, and the tensors after restoring their values."""
    whole = torch.arange(15.0).reshape(3, 5)
    line, square = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1))
    ways: dict[str, tuple[Any, list[Any]]] = {
        "columns": (line, [Shard(1)]),
        "copies": (line, [Replicate()]),
        "hybrid": (square, [Replicate(), Shard(0)]),
    }
    found: dict[str, Any] = {}
    for name, (mesh, placements) in ways.items():
        tensor = distribute_tensor(whole, mesh, placements)
        shard = shard_of(tensor)
        assert shard is not None
        again = torch.zeros_like(tensor)
        StoredTensor.of(whole).copy_to(again)
        found[name] = {
            "start": list(shard.start),
            "part": shard.tensor.clone(),
            "is_first": shard.is_first,
            "again": again.full_tensor(),  # type: ignore[attr-defined]
        }
    try:
        shard_of(DTensor.from_local(whole, line, [Partial()]))
    except DataError as error:
        found["sums"] = str(error)
    return found


def main(folder: Path) -> None:
    """Run everything on this rank."""
    join_group()
    world, found = dist.get_world_size(), {}
    if world == 2:
        for name, plan in PLANS.items():
            found[f"noisy {name}"] = stopped_and_taken_up(
                lambda plan=plan: make_loop(Noisy(), *plan), folder / f"noisy-{name}"
            )
        found["elastic"] = stopped_and_taken_up(lambda: make_loop(Elastic(), Sharding()), folder / "two")
        found["from one"] = taken_up(folder / "one", "shards")
        found["boxes"] = boxes()
    else:
        found["sharded"] = taken_up(folder / "two", "shards")
        found["plain"] = taken_up(folder / "two", "plain")
    torch.save(found, folder / f"found{world}-{dist.get_rank()}.pt")
    leave_group()
    end_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
