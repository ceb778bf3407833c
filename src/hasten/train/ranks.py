"""What the loop needs of torch.distributed: who am I, sums over all ranks, one mind. Alone, everything is the identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1

    def share(self, indices: Sequence[int]) -> Sequence[int]:
        """This rank's part of a batch; the parts of all ranks are the batch, none twice."""
        return indices[self.rank :: self.world]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum every gradient over all ranks, as one message; a parameter that no rank used keeps no gradient."""
        if self.world == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        used = trained[0].new_tensor([p.grad is not None for p in trained])
        flat = torch.cat([*((torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained), used])
        dist.all_reduce(flat)
        *parts, used = flat.split([*(p.numel() for p in trained), len(trained)])
        # Only a rank that lacks a gradient has to ask whether another one had it.
        by_any = used.tolist() if any(p.grad is None for p in trained) else [1.0] * len(trained)
        for parameter, part, number in zip(trained, parts, by_any, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype) if number else None

    def agreed(self, value: float) -> float:
        """Rank 0's value, on every rank: what all must do alike (how many updates) may not hang on clocks of their own."""
        return float(self.told(value))

    def told(self, value: Any) -> Any:
        """What rank 0 brings, on every rank."""
        brought: list[Any] = [value]
        if self.world > 1:
            dist.broadcast_object_list(brought, src=0)
        return brought[0]

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The largest of each number over all ranks; every rank must bring as many."""
        return [max(each) for each in zip(*self.gathered(list(seconds)), strict=True)]

    def straggler(self, seconds: float) -> float:
        """The largest of a number over its mean, over all ranks: 1.0 where all are alike."""
        found = self.gathered(seconds)
        mean = sum(found) / len(found)
        return max(found) / mean if mean > 0 else 1.0

    def gathered(self, value: Any) -> list[Any]:
        """What every rank brings, by rank."""
        gathered: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def union(self, names: Iterable[str]) -> list[str]:
        """Every name that some rank has, sorted; the same list on all ranks."""
        return sorted({name for part in self.gathered(list(names)) for name in part})


def current_ranks() -> Ranks:
    """The process group that is initialised, or one process alone."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()
