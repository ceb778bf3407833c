"""The collective operations that the loop needs from torch.distributed. With a single process, each is the identity."""

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

_SPARSE = 4096.0
"""Stands for a sparse gradient among the numbers that ranks sum: more than any number of ranks."""


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in its group, with the group's collective operations."""

    rank: int = 0
    world: int = 1

    def share(self, indices: Sequence[int]) -> Sequence[int]:
        """Return this rank's part of a batch. Each sample belongs to exactly one rank."""
        return indices[self.rank :: self.world]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum every gradient over all ranks, as one message. A parameter that no rank used gets no gradient."""
        if self.world == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        pieces = [_flat(torch.zeros_like(p) if p.grad is None else p.grad) for p in trained]
        used = pieces[0].new_tensor([_kind(p.grad) for p in trained])
        flat = torch.cat([*pieces, used])
        dist.all_reduce(flat)
        *parts, used = flat.split([*(piece.numel() for piece in pieces), len(trained)])
        # Only a rank that lacks a gradient must check whether another rank has one.
        mine = [_kind(p.grad) for p in trained]
        for parameter, part, number in zip(trained, parts, mine if all(mine) else used.tolist(), strict=True):
            summed = _like(part, parameter)
            parameter.grad = (summed.to_sparse(1) if number >= _SPARSE else summed) if number else None

    def agreed(self, value: float) -> float:
        """Return rank 0's value on every rank, for decisions that must not depend on each rank's own clock."""
        return float(self.broadcast(value))

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's object on every rank."""
        values: list[Any] = [value]
        if self.world > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """Return the maximum of each number over all ranks. Every rank must pass the same number of values."""
        return [max(each) for each in zip(*self.gather(list(seconds)), strict=True)]

    def straggler(self, seconds: float) -> float:
        """Return the maximum of a number over all ranks, divided by its mean: 1.0 if all are equal."""
        values = self.gather(seconds)
        mean = sum(values) / len(values)
        return max(values) / mean if mean > 0 else 1.0

    def gather(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, by rank."""
        gathered: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def union(self, names: Iterable[str]) -> list[str]:
        """Return the sorted union of the names of all ranks, the same list on every rank."""
        return sorted({name for part in self.gather(list(names)) for name in part})


def _kind(gradient: torch.Tensor | None) -> float:
    """Return 0 for no gradient, 1 for a dense one, `_SPARSE` for a sparse one."""
    if gradient is None:
        return 0.0
    return 1.0 if gradient.layout is torch.strided else _SPARSE


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as one row of real numbers."""
    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).reshape(-1)


def _like(row: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Return a row of real numbers in the shape and type of a parameter."""
    if parameter.is_complex():
        return torch.view_as_complex(row.reshape(*parameter.shape, 2)).to(parameter.dtype)
    return row.view_as(parameter).to(parameter.dtype)


def current_ranks() -> Ranks:
    """Return the initialised process group, or a single process."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


class PlaceholderBatch:
    """This rank's part of an early batch of the run, fetched on first use."""

    def __init__(self, live: LiveJob, ranks: Ranks) -> None:
        self._live, self._ranks = live, ranks
        self._batch: Any = None

    def batch(self) -> Any:
        """Return the batch on the device.

        Raises:
            JobError: The dataset is iterable.
        """
        if self._batch is None:
            live = self._live
            if live.order is None:
                raise JobError(
                    f"{type(live.job).__name__} reads an iterable dataset whose last batch has fewer samples than there are "
                    f"ranks: remove optimizations that sum gradients during the backward pass from the plan, or end the "
                    f"dataset with a full batch."
                )
            indices = max(live.batches(0)[:2], key=len)
            self._batch = live.pipeline.fetch(0, self._ranks.share(indices) or indices)
        return self._live.to_device(self._batch)

    @contextmanager
    def changing_nothing(self) -> Iterator[None]:
        """Restore running statistics and the random number generators at the end of the block."""
        with kept_buffers(self._live.model), kept_random_state():
            yield
