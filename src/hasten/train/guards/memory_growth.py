"""Tell when a run's memory grows, and what it is that grows.

The memory of a window of updates is its highest; the first windows after the warm-up are the baseline. Where several windows
in a row lie a fifth above it, the tensors that there are now are compared with those there were then, by type and shape.
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
"""Times the baseline from which memory has grown: the rule of the system this was first asked for."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How memory is judged.

    Attributes:
        updates: Of a window.
        skipped: Windows at the start that say nothing: buffers and caches fill.
        baseline: Windows that make the baseline.
        grown: Windows in a row that must lie above.
    """

    updates: int = 50
    skipped: int = 1
    baseline: int = 3
    grown: int = 3


class GrowthWatch:
    """Watches the memory of this process.

    Args:
        say: Told once when it has grown, and again when it has grown as much once more.
        windows: How it is judged.
        memory: Gives bytes in use; None asks the system, and CUDA where it is used.

    Attributes:
        told: How often it was found to have grown.
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
        """Look, once in a while: a look costs some microseconds."""
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
    """Count the tensors that Python can reach, by type and shape. Those with symbolic shapes hold no memory."""
    found: Kinds = Counter()
    for thing in gc.get_objects():
        try:
            if issubclass(type(thing), torch.Tensor):  # isinstance would wake what is loaded lazily
                shape = tuple(thing.shape)
                if all(isinstance(size, int) for size in shape):
                    found[str(thing.dtype).removeprefix("torch."), shape] += 1
        except ReferenceError:  # a proxy of something that is gone
            continue
    return found


def growth_words(before: Kinds, now: Kinds, most: int = 3) -> str:
    """Which kinds of tensors became more, those with the most bytes first."""
    more = {kind: count - before[kind] for kind, count in now.items() if count > before[kind]}
    ranked = sorted(more, key=lambda kind: -more[kind] * _bytes(kind))[:most]
    if not ranked:
        return (
            "No kind of tensor that Python can reach became more: look at the libraries beside torch, and at loader workers."
        )
    words = "; ".join(
        f"{more[kind]} more {kind[0]} {list(kind[1])} ({more[kind] * _bytes(kind) / 2**20:,.1f} MiB)" for kind in ranked
    )
    return f"There are {words}. Look for lists that keep losses or outputs: keep loss.item() or loss.detach() instead."


def _bytes(kind: tuple[str, tuple[int, ...]]) -> int:
    return int(torch.Size(kind[1]).numel() * getattr(torch, kind[0]).itemsize)


def in_use(*, host: bool = True) -> int:
    """Bytes this process uses: on its CUDA device, where it uses one, and on the host unless that is left out."""
    device = int(torch.cuda.memory_allocated()) if torch.cuda.is_initialized() else 0
    return device + (host_bytes() if host else 0)


def host_bytes() -> int:
    """Bytes of main memory this process uses."""
    return int(psutil.Process().memory_info().rss)
