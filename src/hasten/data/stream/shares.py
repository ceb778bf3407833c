"""Divide the positions of an epoch among ranks, so that each global batch has a share for every rank.

A global batch is `batch_size * world_size` consecutive positions, and rank r takes the r-th share of it. The samples of a
global batch therefore do not depend on the number of ranks: an epoch can be stopped with four ranks and resumed with three.
The end of an epoch rarely fills a global batch. The remaining samples are shared evenly. If there is less than one sample
per rank, the previous batch gives up some of its own, so that all ranks make the same number of steps and every sample is
used once. The last batch of a rank is empty only if a run is resumed with more ranks than samples are left in the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hasten.core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Divide an epoch into steps, and a step into shares.

    Attributes:
        num_samples: Number of samples in the epoch.
        batch_size: Number of samples in a full batch of one rank.
        world_size: Number of ranks.
        drop_last: Omit samples that do not fill a global batch.
    """

    num_samples: int
    batch_size: int
    world_size: int
    drop_last: bool

    @property
    def full(self) -> int:
        """Return the number of samples in a full global batch."""
        return self.batch_size * self.world_size

    def num_steps(self, start: int = 0) -> int:
        """Return the number of global batches from a position to the end of the epoch."""
        steps, left = divmod(max(self.num_samples - start, 0), self.full)
        return steps + (left > 0 and not self.drop_last and not self._joins(steps, left))

    def steps(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each global batch from a position to the end of the epoch."""
        full = self.full
        sure = self.num_samples - full - self.world_size  # up to here, enough samples are left for the next batch
        while start <= sure:
            yield start, start + full
            start += full
        first, end = self.step(start)
        while first < end:
            yield first, end
            first, end = self.step(end)

    def step(self, start: int) -> tuple[int, int]:
        """Return the start and end of the global batch at a position; they are equal at the end of the epoch."""
        left = self.num_samples - start
        if left < self.full:
            return (start, start) if self.drop_last else (start, max(start, self.num_samples))
        after = left - self.full
        if self.drop_last or after == 0 or after >= self.world_size:
            return start, start + self.full
        if self._joins(1, after):
            return start, self.num_samples
        return start, start + self.full - (self.world_size - after)

    def _joins(self, steps: int, left: int) -> bool:
        """Return True if the remaining samples join the previous batch, which has one sample per rank and none to give."""
        return self.batch_size == 1 and steps > 0 and left < self.world_size

    def share(self, start: int, end: int, rank: int) -> tuple[int, int]:
        """Return a rank's part of a global batch. The parts differ by at most one sample."""
        size, more = divmod(end - start, self.world_size)
        first = start + rank * size + min(rank, more)
        return first, first + size + (rank < more)

    def check(self) -> None:
        """Check that every rank gets a batch.

        Raises:
            DataError: There are fewer samples than ranks, or with `drop_last` fewer than a global batch.
        """
        least = self.full if self.drop_last else self.world_size
        if self.num_samples < least:
            needed = f"one global batch of {self.full}" if self.drop_last else f"the {self.world_size} ranks"
            raise DataError(
                f"{self.num_samples} samples are fewer than {needed}: use fewer ranks, smaller batches or more data."
            )
