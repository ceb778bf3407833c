"""Report which tensors grow in number, if an alert says that a run's memory grows."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TypeAlias

import psutil
import torch

Kinds: TypeAlias = "Counter[tuple[str, tuple[int, ...]]]"


def tensors_alive() -> Kinds:
    """Count the tensors that Python can reach, by dtype and shape. Tensors with symbolic shapes hold no memory."""
    counts: Kinds = Counter()
    for thing in gc.get_objects():
        try:
            if issubclass(type(thing), torch.Tensor):  # isinstance would trigger lazily loaded objects
                shape = tuple(thing.shape)
                if all(isinstance(size, int) for size in shape):
                    counts[str(thing.dtype).removeprefix("torch."), shape] += 1
        except ReferenceError:  # a weak proxy of a deleted object
            continue
    return counts


def growth_words(before: Kinds, now: Kinds, most: int = 3) -> str:
    """Describe which kinds of tensors grew in number, those with the most bytes first."""
    more = {kind: count - before[kind] for kind, count in now.items() if count > before[kind]}
    ranked = sorted(more, key=lambda kind: -more[kind] * _bytes(kind))[:most]
    if not ranked:
        return "The number of tensors in Python did not grow: check libraries other than torch, and loader workers."
    listed = "; ".join(
        f"{more[kind]} more {kind[0]} {list(kind[1])} ({more[kind] * _bytes(kind) / 2**20:,.1f} MiB)" for kind in ranked
    )
    return f"There are {listed}. Check for lists that keep losses or outputs: keep loss.item() or loss.detach() instead."


def _bytes(kind: tuple[str, tuple[int, ...]]) -> int:
    return int(torch.Size(kind[1]).numel() * getattr(torch, kind[0]).itemsize)


def host_bytes() -> int:
    """Return the bytes of main memory that this process uses."""
    return int(psutil.Process().memory_info().rss)
