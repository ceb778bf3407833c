"""Predict the batches of a sampler with a copy of it, so that workers can start on them early.

Only PyTorch's own samplers are copied: they draw from the process's generators only with their first index, and their own
generators can be copied. The caller compares each predicted index with the one that the real sampler gives later, so a wrong
prediction only costs time.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hasten.core.seeding import kept_random_state

SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
_SEQUENCES = (list, tuple, range)


class Lookahead:
    """The indices that a sampler will give from its next epoch on, in order. Created just before its first index is taken.

    Args:
        sampler: A sampler for which `why_unpredictable` returns "".
    """

    def __init__(self, sampler: Any) -> None:
        self._indices = iter(_copied(sampler))
        self._ready: deque[Any] = deque()
        with kept_random_state():  # the first index draws from the generator of the process
            self.peek(1)

    def peek(self, count: int) -> list[Any]:
        """Return the next `count` indices, or fewer at the end, without consuming them."""
        self._ready.extend(islice(self._indices, max(count - len(self._ready), 0)))
        return list(islice(self._ready, count))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.peek(1):
            raise StopIteration
        return self._ready.popleft()


def why_unpredictable(sampler: Any) -> str:
    """Return why the batches of a sampler cannot be predicted; "" if they can."""
    if type(sampler) is BatchSampler:
        return why_unpredictable(sampler.sampler)
    if type(sampler) in (*SAMPLERS, *_SEQUENCES):
        return ""
    return f"{type(sampler).__name__} is not one of PyTorch's samplers, so its batches cannot be predicted"


def draws_at_start(sampler: Any) -> bool:
    """Return whether a sampler draws all its random numbers with its first index, so that reading ahead changes nothing."""
    if type(sampler) is BatchSampler:
        return draws_at_start(sampler.sampler)
    return type(sampler) in (*SAMPLERS, *_SEQUENCES) and getattr(sampler, "generator", None) is None


def same_index(expected: Any, given: Any) -> bool:
    """Return whether a sampler gave the expected index."""
    return type(expected) is type(given) and bool(expected == given)


def _copied(sampler: Any) -> Any:
    if type(sampler) in _SEQUENCES:
        return sampler
    copied = copy.copy(sampler)
    if type(sampler) is BatchSampler:
        copied.sampler = _copied(sampler.sampler)
    elif getattr(sampler, "generator", None) is not None:
        copied.generator = torch.Generator(device=sampler.generator.device)
        copied.generator.set_state(sampler.generator.get_state())
    return copied
