"""Detect memory that grows with every step, such as losses kept with their graphs or lists that are never emptied."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from hasten.core.machine import read_memory_limit

LEAST_SAMPLES = 8
"""Smallest number of readings from which growth is judged."""
LEAST_BYTES = 2**20
"""Total growth below this many bytes is ignored."""
PARTS = 4
"""Number of parts into which the observed steps are divided."""
STEADY = 0.5
"""Growth is steady if each part grows by at least this share of the average. Memory for loading, caching or compiling grows
only for a while."""
FULL_STEPS, FULL_S = 10_000, 600.0
"""Memory that lasts for more steps and seconds than these is not a bottleneck."""


@dataclass(frozen=True)
class Growth:
    """Steady growth of memory.

    Attributes:
        step_bytes: Growth per step.
        steps_left: Number of steps until memory is full.
        frac: Share of all memory that the observed steps took.
    """

    step_bytes: float
    steps_left: int
    frac: float

    @property
    def words(self) -> str:
        """Describe the growth in one or two sentences."""
        size = f"{self.step_bytes / 2**20:.1f} MiB" if self.step_bytes >= 2**20 else f"{self.step_bytes / 2**10:.0f} KiB"
        return (
            f"Memory grows by {size} with every step and will be full after about {self.steps_left} more. Look for objects "
            "kept from past steps, such as losses that are not detached or lists that only grow."
        )


def memory_in_use() -> int:
    """Return the bytes that this process uses: of the GPU if it uses one, else of main memory; 0 if unknown."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.memory_allocated())
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # faster than a file object, inside a training loop
    except OSError:
        return 0
    try:
        return int(os.read(file, 128).split()[1]) * mmap.PAGESIZE
    finally:
        os.close(file)


def memory_limit() -> int:
    """Return the total bytes of the memory that `memory_in_use` measures."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return read_memory_limit().value


def steady_growth(samples: Sequence[tuple[int, int]], limit_bytes: int, step_s: float = 1.0) -> Growth | None:
    """Return the growth of memory if it is steady and will soon fill the memory.

    Args:
        samples: Pairs of a step number and the bytes in use after that step, in order.
        limit_bytes: Total memory.
        step_s: Seconds per step.
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
