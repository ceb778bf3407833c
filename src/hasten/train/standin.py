"""What a rank without samples computes while the others train: a batch whose loss weighs nothing.

Where gradients are averaged during the backward pass, every rank must make the pass. A real batch of the job takes the
same way through the model as those of the other ranks, so nothing that was learnt of that way (unused parameters, the order
of the gradients) is wrong on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hasten.core.errors import JobError
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers
from hasten.core.seeding import kept_random_state
from hasten.train.ranks import Ranks


class StandIn:
    """This rank's part of an early batch of the run, fetched when it is first needed."""

    def __init__(self, live: LiveJob, ranks: Ranks) -> None:
        self._live, self._ranks = live, ranks
        self._batch: Any = None

    def batch(self) -> Any:
        """The batch, on the device.

        Raises:
            JobError: The data can only be read in order.
        """
        if self._batch is None:
            live = self._live
            if live.order is None:
                raise JobError(
                    f"{type(live.job).__name__} reads an iterable dataset whose last batch has fewer samples than there are "
                    f"ranks: take gradient_buckets or sharding out of the plan, or let the dataset end on a full batch."
                )
            indices = max(live.batches(0)[:2], key=len)
            self._batch = live.pipeline.fetch(0, self._ranks.share(indices) or indices)
        return self._live.to_device(self._batch)

    @contextmanager
    def changing_nothing(self) -> Iterator[None]:
        """Let neither running statistics nor the run's random numbers notice."""
        with kept_buffers(self._live.model), kept_random_state():
            yield
