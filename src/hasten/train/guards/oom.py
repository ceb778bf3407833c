"""Recover from running out of memory in an update, by repeating it with its batches in smaller parts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from hasten.core.batch import iter_tensors
from hasten.train.loop import MicroBatch

_MESSAGES = ("can't allocate memory", "out of memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that an allocation failed, on the host or the device."""
    return isinstance(error, MemoryError | RuntimeError) and tells_of_memory(error)


def tells_of_memory(error: BaseException) -> bool:
    """Whether an error of any class is an out-of-memory error, by its class or its message."""
    message = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in message for part in _MESSAGES)


class Window:
    """The micro-batches of one update, stored as they are taken, so that they can be taken again.

    Args:
        source: The source of micro-batches; None marks the end of an epoch.
    """

    def __init__(self, source: Iterator[MicroBatch | None]) -> None:
        self._source = source
        self._kept: list[MicroBatch | None] = []
        self._at = 0

    def __iter__(self) -> Window:
        return self

    def __next__(self) -> MicroBatch | None:
        if self._at == len(self._kept):
            self._kept.append(next(self._source))
        self._at += 1
        return self._kept[self._at - 1]

    @property
    def num_batches(self) -> int:
        """Number of micro-batches taken so far."""
        return sum(item is not None for item in self._kept)

    def again(self) -> None:
        """Restart from the first micro-batch."""
        self._at = 0


class PieceLimit:
    """The limit on the size of a piece of a batch, learned from pieces that did not fit in memory.

    Attributes:
        elements: Number of tensor elements in a piece that did not fit. Pieces must have fewer. None if all have fit so far.
    """

    def __init__(self) -> None:
        self.elements: int | None = None
        self._last = (0, 1, 1)

    def parts(self, batch: Any, size: int, at_least: int) -> int:
        """Return the number of parts for a batch of `size` samples: `at_least`, doubled until a piece is below the limit."""
        elements = max(1, sum(tensor.numel() for tensor in iter_tensors(batch)))
        parts = at_least
        if self.elements is not None:
            while parts < size and -(-elements // parts) >= self.elements:
                parts = min(2 * parts, size)
        self._last = (elements, size, parts)
        return parts

    def lower(self) -> bool:
        """Lower the limit after a piece of the last batch did not fit. Return whether smaller pieces are possible."""
        elements, size, parts = self._last
        if parts >= size:
            return False
        self.elements = -(-elements // parts)
        return True


class ChangedBuffers:
    """Restores the model's buffers, such as running statistics, after a failed pass.

    Torch's version counters show which buffers change, so constants are copied only once. Running statistics of
    normalisation layers change without being counted, and are always treated as changing.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._buffers = list(model.buffers())
        self._versions = [buffer._version for buffer in self._buffers]  # noqa: SLF001  public only in torch's C++ API
        norms = [module for module in model.modules() if isinstance(module, _NormBase)]
        self._statistics = {id(buffer) for module in norms for buffer in module.buffers(recurse=False)}
        self._changing = list(self._buffers)
        self._copies: list[torch.Tensor] = []

    def keep(self) -> None:
        """Copy the buffers before an update."""
        if self._copies and len(self._copies) == len(self._changing):
            torch._foreach_copy_(self._copies, self._changing)
            return
        self._copies = [buffer.detach().clone() for buffer in self._changing]

    def put_back(self) -> None:
        """Restore the copied buffers."""
        for buffer, copy in zip(self._changing, self._copies, strict=True):
            buffer.data.copy_(copy)  # `data`: hide the change from autograd, which may have saved the buffer

    def learn(self) -> None:
        """After an update, stop copying the buffers that it did not change."""
        changed = [
            buffer
            for buffer, version in zip(self._buffers, self._versions, strict=True)
            if buffer._version != version or id(buffer) in self._statistics  # noqa: SLF001  as above
        ]
        if len(changed) != len(self._changing):
            self._changing, self._copies = changed, []


def free_memory() -> None:
    """Release unused memory on the host and the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
