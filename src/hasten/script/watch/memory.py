"""Memory that a script takes more of with every step: kept losses with their graphs, lists that are never emptied."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from hasten.core.machine import read_memory_limit

LEAST_SAMPLES = 8
LEAST_BYTES = 2**20
"""Less than this in all is no growth."""
PARTS = 4
STEADY = 0.5
"""Each quarter of the observed steps must grow by at least this share of what an average one does: what is loaded, cached or
compiled once grows for a while and then no more."""
FULL_STEPS, FULL_S = 10_000, 600.0
"""Memory that lasts for more steps and seconds than these is nobody's bottleneck."""


@dataclass(frozen=True)
class Growth:
    """How memory grows.

    Attributes:
        step_bytes: By so much every step.
        steps_left: After so many more it is full.
        frac: The observed steps alone took this share of all memory.
    """

    step_bytes: float
    steps_left: int
    frac: float

    @property
    def words(self) -> str:
        """A sentence or two for a person."""
        size = f"{self.step_bytes / 2**20:.1f} MiB" if self.step_bytes >= 2**20 else f"{self.step_bytes / 2**10:.0f} KiB"
        return (
            f"Memory grows by {size} with every step; at that rate it is full after about {self.steps_left} more. Look for "
            "what is kept of past steps, such as losses that are not detached or lists that only grow."
        )


def memory_in_use() -> int:
    """Bytes that this process holds now: of the GPU where it works on one, else of main memory; 0 where nobody tells."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.memory_allocated())
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # no file object: this is read amid a training loop
    except OSError:
        return 0
    try:
        return int(os.read(file, 128).split()[1]) * mmap.PAGESIZE
    finally:
        os.close(file)


def memory_limit() -> int:
    """All bytes there are, where `memory_in_use` counts them."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return read_memory_limit().value


def steady_growth(samples: Sequence[tuple[int, int]], limit_bytes: int, step_s: float = 1.0) -> Growth | None:
    """How memory grows, if it does so steadily and will soon be full.

    Args:
        samples: Numbers of steps and bytes in use after them, in order.
        limit_bytes: All there is.
        step_s: Seconds of a step.
    """
    if len(samples) < LEAST_SAMPLES or limit_bytes <= 0:
        return None
    marks = [samples[part * (len(samples) - 1) // PARTS] for part in range(PARTS + 1)]
    (first_step, first), (last_step, last) = marks[0], marks[-1]
    step_bytes = (last - first) / (last_step - first_step)
    slopes = [(after - before) / (then - now) for (now, before), (then, after) in pairwise(marks)]
    if last - first < LEAST_BYTES or min(slopes) < STEADY * step_bytes:
        return None
    steps_left = max(int((limit_bytes - last) / step_bytes), 0)
    if steps_left > FULL_STEPS and steps_left * step_s > FULL_S:
        return None
    return Growth(step_bytes=step_bytes, steps_left=steps_left, frac=(last - first) / limit_bytes)
