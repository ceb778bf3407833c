"""The collective operations that the loop needs of torch.distributed. With a single process each is the identity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hasten.core.errors import JobError
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers
from hasten.core.seeding import kept_random_state


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
        return float(self.broadcast(value))

    def broadcast(self, value: Any) -> Any:
        """What rank 0 brings, on every rank."""
        brought: list[Any] = [value]
        if self.world > 1:
            dist.broadcast_object_list(brought, src=0)
        return brought[0]

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The largest of each number over all ranks; every rank must bring as many."""
        return [max(each) for each in zip(*self.gather(list(seconds)), strict=True)]

    def straggler(self, seconds: float) -> float:
        """The largest of a number over its mean, over all ranks: 1.0 where all are alike."""
        found = self.gather(seconds)
        mean = sum(found) / len(found)
        return max(found) / mean if mean > 0 else 1.0

    def gather(self, value: Any) -> list[Any]:
        """What every rank brings, by rank."""
        gathered: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def union(self, names: Iterable[str]) -> list[str]:
        """Every name that some rank has, sorted; the same list on all ranks."""
        return sorted({name for part in self.gather(list(names)) for name in part})


def current_ranks() -> Ranks:
    """The process group that is initialised, or one process alone."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


class PlaceholderBatch:
    """This rank's part of an early batch of the run, fetched when it is first needed."""

    def __init__(self, live: LiveJob, ranks: Ranks) -> None:
        self._live, self._ranks = live, ranks
        self._batch: Any = None

    def batch(self) -> Any:
        """The batch, on the device.

        Raises:
            JobError: The data can only be read in order.
        """
        if self._batch is None:
            live = self._live
            if live.order is None:
                raise JobError(
                    f"{type(live.job).__name__} reads an iterable dataset whose last batch has fewer samples than there are "
                    f"ranks: take what sums gradients during the backward pass out of the plan, or let the dataset end on "
                    f"a full batch."
                )
            indices = max(live.batches(0)[:2], key=len)
            self._batch = live.pipeline.fetch(0, self._ranks.share(indices) or indices)
        return self._live.to_device(self._batch)

    @contextmanager
    def changing_nothing(self) -> Iterator[None]:
        """Let neither running statistics nor the run's random numbers notice."""
        with kept_buffers(self._live.model), kept_random_state():
            yield
