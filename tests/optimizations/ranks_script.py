"""Test the contract and the arithmetic of the techniques for several ranks, in a group started by torchrun.

Usage: torchrun --nproc-per-node 2 -m tests.optimizations.ranks_script FOLDER
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.optimization import Optimization
from hasten.optimizations.gradient_buckets import GradientBuckets
from hasten.optimizations.gradient_compression import GradientCompression
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.sharding import Sharding
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from hasten.train.validate import HeldOut
from hasten.tune.trials.gradients import group_gradient_sample, update_sample
from tests.optimizations.cases import CASES, GROUPED
from tests.optimizations.contract import CPU, Block, make_loop, undone
from tests.train.jobs import Tokens
from tests.train.ranks_script import Uneven

SMALL = 0.0005
"""Size of a bucket in MiB, so that models of a few kilobytes have several buckets."""
UPDATES = 11
TOGETHER: dict[str, tuple[Optimization, ...]] = {
    "gradient_compression": (GradientBuckets(bucket_mb=SMALL),),
}


# Jobs: 17 samples in batches of 4, so in the last batch of an epoch one rank has no sample.


class Single(Uneven):
    """Every batch is an update."""

    accumulation = 1


class Thirds(Uneven):
    """Windows of three batches and of two, because the epoch ends the last one early."""

    accumulation = 3


class Fifths(Uneven):
    """One window per epoch. In its last micro-batch, one rank has no sample."""

    accumulation = 5


class Stack(Tokens):
    """A model with repeated blocks, gradient clipping, and a norm with running statistics."""

    num_samples = 17
    accumulation = 3
    clip_norm = 0.5

    def model(self) -> nn.Module:
        torch.manual_seed(9)
        return _Blocks().double()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)


class StackSingle(Stack):
    """The same job with an update per batch."""

    accumulation = 1


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.blocks = nn.ModuleList([_Quiet(0.0) for _ in range(3)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [batch, time] to [batch, time, 11]."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class _Quiet(Block):
    """A block without batch statistics, which differ between ranks."""

    def __init__(self, dropout: float) -> None:
        super().__init__(dropout)
        self.norm: Any = nn.Identity()


class HeldOutStack(Stack):
    """A job with a single held-out sample."""

    def valid_data(self) -> Any:
        return torch.utils.data.Subset(self.train_data(), [3])


TRAINED: dict[str, tuple[type[Job], tuple[Optimization, ...]]] = {
    f"{job.__name__}-{name}": (job, plan)
    for jobs, plans in (
        (
            (Single, Uneven, Thirds, Fifths),
            {
                "buckets": (GradientBuckets(bucket_mb=SMALL),),
                "static": (GradientBuckets(bucket_mb=SMALL, static_graph=True),),
                "parts": (GradientBuckets(bucket_mb=SMALL), Microbatch(parts=2)),
            },
        ),
        ((Stack, StackSingle), {"buckets": (GradientBuckets(),), "shards": (Sharding(),)}),
    )
    for job in jobs
    for name, plan in plans.items()
}
ROUNDED: dict[str, tuple[Optimization, ...]] = {
    "bfloat16": (*TOGETHER["gradient_compression"], GradientCompression(dtype="bfloat16")),
    "float16": (*TOGETHER["gradient_compression"], GradientCompression(dtype="float16")),
    "half_shards": (Sharding(param_dtype="bfloat16"),),
}


class Single32(Stack):
    """The same job in float32, where all techniques round."""

    accumulation = 1

    def model(self) -> nn.Module:
        return super().model().float()


def train(job: type[Job], plan: tuple[Optimization, ...]) -> dict[str, Any]:
    """Return the losses, weights and counters of a run. One process must give the same numbers."""
    loop = make_loop(job(), *plan)
    loop.run(UPDATES)
    loop.close()
    weights = {name: value.clone() for name, value in loop.live.whole_state().items()}
    counters = dict(loop.live.counters)
    loop.live.undo_all()
    return {"losses": loop.losses, "weights": weights, "counters": counters}


# The contract, as in `test_contract.py` for one process.


def failed(optimization: Optimization, loop: Loop) -> list[str]:
    checks = optimization.evidence(loop.live, trace_step(loop))
    return [f"{check.name}: {check.seen}" for check in checks if not check.passed]


def evidence(name: str, item: Optimization, others: tuple[Optimization, ...]) -> None:
    job = CASES[name].job
    assert failed(item, make_loop(job(), *others)), "the negative control detected the mechanism in a plain run"
    loop = make_loop(job(), *others, item)
    assert not failed(item, loop), failed(item, loop)
    assert failed(item, undone(loop)), "the mechanism is still active after the undo"


def undo(name: str, item: Optimization, others: tuple[Optimization, ...]) -> None:
    from tests.optimizations.test_contract import visible

    job = CASES[name].job
    plain = build(job(), device=CPU)
    before = visible(plain)
    alone = Loop(plain)
    alone.run(UPDATES)
    loop = make_loop(job(), *others, item)
    assert visible(loop.live) != before
    loop.run(3)
    again = undone(loop)
    assert visible(again.live) == before, (visible(again.live), before)
    again.run(UPDATES)
    assert again.losses == alone.losses


def rewound(name: str, item: Optimization, others: tuple[Optimization, ...]) -> None:
    loop = make_loop(CASES[name].job(), *others, item)
    loop.run(5)
    first = list(loop.losses)
    loop.rewind()
    loop.run(5)
    assert loop.losses == first, (loop.losses, first)


def sampled(name: str, item: Optimization, others: tuple[Optimization, ...]) -> None:
    """Take the samples that the numerics check needs. They must not change the run."""
    loop = make_loop(CASES[name].job(), *others, item)
    loop.run(2)
    first = list(loop.losses)
    loop.rewind()
    rows = group_gradient_sample(loop, 3)
    assert rows.shape[0] == 5
    assert abs(rows).sum() > 0
    moved = update_sample(loop)
    assert all(any(step) for step in moved.moved)
    loop.rewind()
    loop.run(2)
    assert loop.losses == first, (loop.losses, first)


CONTRACT: dict[str, Callable[[str, Optimization, tuple[Optimization, ...]], None]] = {
    "evidence": evidence,
    "undo": undo,
    "rewound": rewound,
    "sampled": sampled,
}


class Few(Uneven):
    """Batches of one sample."""

    batch_size = 1


def refusals() -> dict[str, str]:
    """Return the error messages of techniques that cannot be applied."""
    said = {}
    cases: dict[str, tuple[type[Job], tuple[Optimization, ...]]] = {
        "few": (Few, (GradientBuckets(),)),
        "alone": (Single, (GradientCompression(),)),
    }
    for name, (job, plan) in cases.items():
        try:
            make_loop(job(), *plan)
            said[name] = "nothing"
        except JobError as error:
            said[name] = str(error)
    return said


def main(folder: Path) -> None:
    """Run everything, and save the results of each rank."""
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"contract": {}, "refusals": refusals()}
    for name in GROUPED:
        for part, act in CONTRACT.items():
            try:
                act(name, CASES[name].make(), TOGETHER.get(name, ()))
                found["contract"][f"{name}-{part}"] = ""
            except Exception:  # noqa: BLE001  a separate test reports each error
                found["contract"][f"{name}-{part}"] = traceback.format_exc()
    trained = {name: train(job, plan) for name, (job, plan) in TRAINED.items()}
    trained |= {name: train(Single32, plan) for name, plan in ROUNDED.items()}
    held = make_loop(HeldOutStack(), Sharding())
    found["held_out"] = HeldOut(held.live).measure()
    rank = dist.get_rank()
    torch.save(trained, folder / f"trained{rank}.pt")
    (folder / f"found{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
