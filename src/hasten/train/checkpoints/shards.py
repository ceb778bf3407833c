"""Tensors in parts: which part of a tensor this rank holds, and how any part is put together from what all ranks wrote.

A sharded tensor (torch's DTensor) lies in parts over the ranks, each a block of rows or, in general, a box: where it begins
and how far it reaches in each dimension. A rank writes its box and where it stands in the whole. Whoever reads, under
however many ranks, copies what overlaps with the box that it holds itself; a whole tensor is a box too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from hasten.core.errors import CorruptError, DataError


@dataclass(frozen=True)
class Shard:
    """What this rank holds of a tensor.

    Attributes:
        tensor: The part, sharing the tensor's memory.
        start: Where it begins in the whole tensor, in each dimension.
        shape: Of the whole tensor.
        is_first: Whether no rank before this one holds the same part: it is written once.
    """

    tensor: torch.Tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]
    is_first: bool


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """This rank's part of a tensor that lies in shards; None for any other tensor.

    Where the part stands is what torch's own distributed checkpoints ask of a DTensor (`__create_chunk_list__`).

    Raises:
        DataError: It lies otherwise than whole or in blocks, such as in sums that were not made yet.
    """
    if not hasattr(tensor, "to_local"):
        return None
    distributed: Any = tensor.detach()
    placements, mesh = distributed.placements, distributed.device_mesh
    part: torch.Tensor = distributed.to_local()
    if not all(placement.is_replicate() or placement.is_shard() for placement in placements):
        raise DataError(
            f"a tensor lies as {placements} over the ranks: a checkpoint keeps whole tensors and blocks of them."
        )
    (chunk,) = distributed.__create_chunk_list__()
    copies = [number for number, placement in enumerate(placements) if placement.is_replicate()]
    is_first = all(mesh.get_local_rank(number) == 0 for number in copies)
    return Shard(part, tuple(map(int, chunk.offsets)), tuple(tensor.shape), is_first)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the files of a checkpoint hold it.

    Attributes:
        shape: Of the whole tensor.
        dtype: Its type.
        parts: Where each part begins, and the part; none overlaps another, and together they are the whole.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[tuple[tuple[int, ...], torch.Tensor], ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> StoredTensor:
        """A tensor that is kept in one part."""
        return cls(tuple(tensor.shape), tensor.dtype, (((0,) * tensor.dim(), tensor),))

    def copy_to(self, target: torch.Tensor) -> None:
        """Give a tensor of this shape its numbers; of one that lies in shards, this rank's part alone."""
        with torch.no_grad():
            shard = shard_of(target)
            box, start = (target, (0,) * target.dim()) if shard is None else (shard.tensor, shard.start)
            for part_start, part in self.parts:
                copy_overlap(part, part_start, box, start)

    def whole(self) -> torch.Tensor:
        """The whole tensor; it shares the memory of its part where it has one alone."""
        if len(self.parts) == 1 and tuple(self.parts[0][1].shape) == self.shape:
            return self.parts[0][1]
        made = torch.empty(self.shape, dtype=self.dtype)
        self.copy_to(made)
        return made


def joined(
    found: Mapping[str, Sequence[tuple[Sequence[int], Sequence[int], torch.Tensor]]], where: str
) -> dict[str, StoredTensor]:
    """Tensors of the parts that all ranks wrote.

    Args:
        found: By name, of each part: the shape of the whole, where the part begins, and the part.
        where: Name of the checkpoint, for messages.

    Raises:
        CorruptError: The parts of a tensor are not the whole of it.
    """
    tensors = {}
    for name, parts in found.items():
        shape, dtype = tuple(parts[0][0]), parts[0][2].dtype
        have = sum(part.numel() for _, _, part in parts)
        if have != prod(shape) or any(tuple(whole) != shape or part.dtype != dtype for whole, _, part in parts):
            raise CorruptError(
                f"{where}: {name} is {list(shape)} with {prod(shape):,} numbers, and the files of all ranks have {have:,}."
            )
        tensors[name] = StoredTensor(shape, dtype, tuple((tuple(start), part) for _, start, part in parts))
    return tensors


def copy_overlap(source: torch.Tensor, begins: Sequence[int], target: torch.Tensor, target_begins: Sequence[int]) -> None:
    """Copy what two boxes of one tensor have in common."""
    for dim, (ours, theirs) in enumerate(zip(target_begins, begins, strict=True)):
        begin = max(ours, theirs)
        length = min(ours + target.shape[dim], theirs + source.shape[dim]) - begin
        if length <= 0:
            return
        source, target = source.narrow(dim, begin - theirs, length), target.narrow(dim, begin - ours, length)
    target.copy_(source)
