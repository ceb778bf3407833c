"""Memory that runs out in an update: the update is done again, its batches in smaller parts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from hasten.core.batch import iter_tensors
from hasten.train.loop import MicroBatch

_WORDS = ("can't allocate memory", "out of memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed, on the host or the device."""
    return isinstance(error, MemoryError | RuntimeError) and tells_of_memory(error)


def tells_of_memory(error: BaseException) -> bool:
    """Whether an error is one of memory, or its words say so, whatever its class."""
    words = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(told in words for told in _WORDS)


class Window:
    """The micro-batches of one update, remembered as they are taken, so that they can be taken again.

    Args:
        source: Where they come from; None marks the end of an epoch.
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
        """Micro-batches that were taken until now."""
        return sum(item is not None for item in self._kept)

    def again(self) -> None:
        """Begin from its first micro-batch."""
        self._at = 0


class PieceLimit:
    """How large a piece of a batch may be, learnt from those that did not fit.

    Attributes:
        elements: Numbers in a piece that did not fit; a piece must hold fewer. None as long as all fitted.
    """

    def __init__(self) -> None:
        self.elements: int | None = None
        self._last = (0, 1, 1)

    def parts(self, batch: Any, size: int, at_least: int) -> int:
        """Parts to cut a batch of `size` samples into: `at_least`, doubled until a piece is below the limit."""
        elements = max(1, sum(tensor.numel() for tensor in iter_tensors(batch)))
        parts = at_least
        if self.elements is not None:
            while parts < size and -(-elements // parts) >= self.elements:
                parts = min(2 * parts, size)
        self._last = (elements, size, parts)
        return parts

    def lower(self) -> bool:
        """Learn that a piece of the last batch did not fit; whether smaller pieces are possible."""
        elements, size, parts = self._last
        if parts >= size:
            return False
        self.elements = -(-elements // parts)
        return True


class ChangedBuffers:
    """Puts back what a pass that failed did to the model's buffers, such as running statistics.

    Which buffers change is found out by torch's version counters, so that constants are copied once and never again. Running
    statistics of normalisation are changed without being counted, and always taken to change.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._buffers = list(model.buffers())
        self._versions = [buffer._version for buffer in self._buffers]  # noqa: SLF001  public in torch's C++ alone
        norms = [module for module in model.modules() if isinstance(module, _NormBase)]
        self._statistics = {id(buffer) for module in norms for buffer in module.buffers(recurse=False)}
        self._changing = list(self._buffers)
        self._copies: list[torch.Tensor] = []

    def keep(self) -> None:
        """Remember the buffers as they are, before an update."""
        if self._copies and len(self._copies) == len(self._changing):
            torch._foreach_copy_(self._copies, self._changing)
            return
        self._copies = [buffer.detach().clone() for buffer in self._changing]

    def put_back(self) -> None:
        """Bring them back."""
        with torch.no_grad():
            for buffer, copy in zip(self._changing, self._copies, strict=True):
                buffer.copy_(copy)

    def learn(self) -> None:
        """After an update: those that it left alone need no more copies."""
        changed = [
            buffer
            for buffer, version in zip(self._buffers, self._versions, strict=True)
            if buffer._version != version or id(buffer) in self._statistics  # noqa: SLF001  as above
        ]
        if len(changed) != len(self._changing):
            self._changing, self._copies = changed, []


def free_memory() -> None:
    """Give back what nobody uses any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
