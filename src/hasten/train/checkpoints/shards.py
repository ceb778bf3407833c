"""Sharded tensors: which part of a tensor this rank holds, and how to assemble any part from the files of all ranks.

A sharded tensor (torch's DTensor) is split over the ranks into blocks of rows or, in general, boxes with a start and a size
in each dimension. A rank writes its box and the box's position in the full tensor. When a checkpoint is read with any number
of ranks, each rank copies the overlap with its own box. A full tensor is also a box.
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
    """This rank's part of a tensor.

    Attributes:
        tensor: The part, sharing the tensor's memory.
        start: Its start in the full tensor, in each dimension.
        shape: Shape of the full tensor.
        is_first: Whether this is the first rank with this part, which writes it.
    """

    tensor: torch.Tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]
    is_first: bool


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """Return this rank's part of a sharded tensor; None for any other tensor.

    The position of the part comes from the same method that torch's distributed checkpoints use (`__create_chunk_list__`).

    Raises:
        DataError: The tensor is neither replicated nor sharded, for example a partial sum.
    """
    if not hasattr(tensor, "to_local"):
        return None
    distributed: Any = tensor.detach()
    placements, mesh = distributed.placements, distributed.device_mesh
    part: torch.Tensor = distributed.to_local()
    if not all(placement.is_replicate() or placement.is_shard() for placement in placements):
        raise DataError(
            f"a tensor has the placements {placements}: a checkpoint can store only replicated and sharded tensors."
        )
    (chunk,) = distributed.__create_chunk_list__()
    copies = [number for number, placement in enumerate(placements) if placement.is_replicate()]
    is_first = all(mesh.get_local_rank(number) == 0 for number in copies)
    return Shard(part, tuple(map(int, chunk.offsets)), tuple(tensor.shape), is_first)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as stored in the files of a checkpoint.

    Attributes:
        shape: Shape of the full tensor.
        dtype: Its dtype.
        parts: Start and data of each part. The parts do not overlap, and together they are the full tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[tuple[tuple[int, ...], torch.Tensor], ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> StoredTensor:
        """Create a stored tensor with one part."""
        return cls(tuple(tensor.shape), tensor.dtype, (((0,) * tensor.dim(), tensor),))

    def copy_to(self, target: torch.Tensor) -> None:
        """Copy the values to a tensor of this shape. If it is sharded, copy only this rank's part."""
        with torch.no_grad():
            shard = shard_of(target)
            box, start = (target, (0,) * target.dim()) if shard is None else (shard.tensor, shard.start)
            for part_start, part in self.parts:
                copy_overlap(part, part_start, box, start)

    def whole(self) -> torch.Tensor:
        """Return the full tensor. If it has only one part, they share memory."""
        if len(self.parts) == 1 and tuple(self.parts[0][1].shape) == self.shape:
            return self.parts[0][1]
        full = torch.empty(self.shape, dtype=self.dtype)
        self.copy_to(full)
        return full


def joined(
    shards: Mapping[str, Sequence[tuple[Sequence[int], Sequence[int], torch.Tensor]]], where: str
) -> dict[str, StoredTensor]:
    """Combine the parts that all ranks wrote into tensors.

    Args:
        shards: Name -> shape of the full tensor, start and data of each part.
        where: Name of the checkpoint, for messages.

    Raises:
        CorruptError: Parts of a tensor are missing.
    """
    tensors = {}
    for name, parts in shards.items():
        shape, dtype = tuple(parts[0][0]), parts[0][2].dtype
        have = sum(part.numel() for _, _, part in parts)
        if have != prod(shape) or any(tuple(whole) != shape or part.dtype != dtype for whole, _, part in parts):
            raise CorruptError(
                f"{where}: {name} has shape {list(shape)} with {prod(shape):,} numbers, but the files of all ranks have "
                f"{have:,}."
            )
        tensors[name] = StoredTensor(shape, dtype, tuple((tuple(start), part) for _, start, part in parts))
    return tensors


def copy_overlap(source: torch.Tensor, begins: Sequence[int], target: torch.Tensor, target_begins: Sequence[int]) -> None:
    """Copy the overlap of two boxes of one tensor."""
    for dim, (ours, theirs) in enumerate(zip(target_begins, begins, strict=True)):
        begin = max(ours, theirs)
        length = min(ours + target.shape[dim], theirs + source.shape[dim]) - begin
        if length <= 0:
            return
        source, target = source.narrow(dim, begin - theirs, length), target.narrow(dim, begin - ours, length)
    target.copy_(source)
