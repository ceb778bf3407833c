"""Who gets which positions of an epoch: ranks share each global batch, and none is ever left without.

A global batch is `batch_size * world_size` consecutive positions; rank r takes the r-th share of it. So the samples of a
global batch do not depend on how many ranks share it, and an epoch may be stopped under four ranks and go on under three.
The end of an epoch rarely fills a global batch. What is left is shared evenly; where it is less than one sample a rank,
the batch before gives some of its own, so that all ranks make the same number of steps and every sample comes once. Only
where a run goes on under more ranks than samples are left in the epoch, the last batch of some of them is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hasten.core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How an epoch is cut into steps, and a step into shares.

    Attributes:
        num_samples: Of the epoch.
        batch_size: Samples of a full batch of one rank.
        world_size: Ranks.
        drop_last: Leave out the samples that do not fill a global batch.
    """

    num_samples: int
    batch_size: int
    world_size: int
    drop_last: bool

    @property
    def full(self) -> int:
        """Samples of a full global batch."""
        return self.batch_size * self.world_size

    def num_steps(self, start: int = 0) -> int:
        """Global batches from a position to the end of the epoch."""
        steps, left = divmod(max(self.num_samples - start, 0), self.full)
        return steps + (left > 0 and not self.drop_last and not self._joins(steps, left))

    def steps(self, start: int) -> Iterator[tuple[int, int]]:
        """The global batches from a position to the end of the epoch: where each begins and ends."""
        full = self.full
        sure = self.num_samples - full - self.world_size  # from no later than here, enough is left for the next one too
        while start <= sure:
            yield start, start + full
            start += full
        first, end = self.step(start)
        while first < end:
            yield first, end
            first, end = self.step(end)

    def step(self, start: int) -> tuple[int, int]:
        """The global batch that begins at a position: where it begins and ends; equal where the epoch is over."""
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
        """Whether what is left joins the batch before: that one has a sample a rank, and none to give."""
        return self.batch_size == 1 and steps > 0 and left < self.world_size

    def share(self, start: int, end: int, rank: int) -> tuple[int, int]:
        """The part of a global batch that a rank gets: sizes differ by at most one sample."""
        size, more = divmod(end - start, self.world_size)
        first = start + rank * size + min(rank, more)
        return first, first + size + (rank < more)

    def check(self) -> None:
        """Refuse what would leave a rank without a batch.

        Raises:
            DataError: There are fewer samples than ranks, or than a global batch where short ones are dropped.
        """
        least = self.full if self.drop_last else self.world_size
        if self.num_samples < least:
            what = f"one global batch of {self.full}" if self.drop_last else f"the {self.world_size} ranks that share them"
            raise DataError(
                f"{self.num_samples} samples are fewer than {what}: use fewer ranks, smaller batches or more data."
            )
