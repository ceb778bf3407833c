"""Detect when a run's memory grows, and report which tensors grow in number.

The memory of a window of updates is the maximum within it. The first windows after the warm-up are the baseline. If several
windows in a row are 20 % above it, the current tensors are compared with those at the baseline, by dtype and shape.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import psutil
import torch

Kinds: TypeAlias = "Counter[tuple[str, tuple[int, ...]]]"

GROWN = 1.2
"""Factor over the baseline at which memory counts as grown."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How memory growth is judged.

    Attributes:
        updates: Number of updates per window.
        skipped: Number of first windows to skip, while buffers and caches fill.
        baseline: Number of windows that form the baseline.
        grown: Number of consecutive windows that must be above the baseline.
    """

    updates: int = 50
    skipped: int = 1
    baseline: int = 3
    grown: int = 3


class GrowthWatch:
    """Watches the memory of this process.

    Args:
        say: Called with a message when memory has grown, and each time it has grown by the same factor again.
        windows: How memory growth is judged.
        memory: Returns the bytes in use; None asks the system, and CUDA if it is used.

    Attributes:
        told: Number of times that growth was reported.
    """

    def __init__(
        self, say: Callable[[str], None], windows: Windows | None = None, memory: Callable[[], int] | None = None
    ) -> None:
        self._say, self._windows = say, windows or Windows()
        self._memory = memory or in_use
        self._updates = 0
        self._peak = 0
        self._done: list[int] = []
        self._last: deque[int] = deque(maxlen=self._windows.grown)
        self._baseline = 0.0
        self._kinds: Kinds = Counter()
        self.told = 0

    def after_update(self) -> None:
        """Read the memory in use, only every few updates, because a reading takes some microseconds."""
        self._updates += 1
        if self._updates % max(1, self._windows.updates // 10) == 0:
            self._peak = max(self._peak, self._memory())
        if self._updates % self._windows.updates == 0:
            self._end_window()

    def _end_window(self) -> None:
        windows = self._windows
        self._done.append(self._peak)
        self._last.append(self._peak)
        self._peak = 0
        if len(self._done) == windows.skipped + windows.baseline:
            self._baseline = median(self._done[windows.skipped :])
            self._kinds = tensors_alive()
        if len(self._done) < windows.skipped + windows.baseline + windows.grown or not self._baseline:
            return
        if min(self._last) > GROWN * self._baseline:
            self.told += 1
            now = tensors_alive()
            grown = min(self._last) / self._baseline - 1
            self._say(
                f"memory has grown by {grown:.0%} to {min(self._last) / 2**20:,.0f} MiB over the last "
                f"{windows.grown * windows.updates} updates. {growth_words(self._kinds, now)}"
            )
            self._baseline, self._kinds = float(min(self._last)), now


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


def in_use(*, host: bool = True) -> int:
    """Return the bytes that this process uses on its CUDA device, if any, and with `host` also in main memory."""
    device = int(torch.cuda.memory_allocated()) if torch.cuda.is_initialized() else 0
    return device + (host_bytes() if host else 0)


def host_bytes() -> int:
    """Return the bytes of main memory that this process uses."""
    return int(psutil.Process().memory_info().rss)
