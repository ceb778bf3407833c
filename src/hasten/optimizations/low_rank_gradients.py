"""Send gradients as products of two thin matrices (PowerSGD).

Relieves:  communication: a gradient of n x m numbers travels as rank x (n + m), summed in two messages after one another.
Numerics:  training: an approximation; what it leaves out is added to the next update's gradient (error feedback).
Limits:    works on the buckets of gradient_buckets without static_graph. Vectors, and matrices too small to gain, travel
           whole. Needs memory for the errors, as much as the gradients. Over gloo a bucket is waited for at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.optimizations.parts.buckets import Future, GradBucket, average, bucket_sync, why_no_sum

MIN_COMPRESSION = 2.0
"""A matrix travels as a product only where that is so many times smaller."""


@dataclass(frozen=True, kw_only=True)
class LowRankGradients(Optimization):
    """torch's PowerSGD hook with error feedback and warm start.

    Attributes:
        rank: Columns of the thin matrices; more is nearer to the gradient and less compressed.
        start_updates: Updates at the beginning of a run whose gradients travel whole.
    """

    rank: int = 4
    start_updates: int = 0

    card: ClassVar[Card] = Card(
        name="low_rank_gradients",
        summary="gradients sent between the ranks as products of thin matrices, with error feedback (PowerSGD)",
        relieves=Bottleneck.COMMUNICATION,
        numerics=Numerics.TRAINING,
        seam=Seam.BACKWARD,
        source="Vogels et al. 2019, PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
        prior=0.3,
        claims=frozenset({"gradient compression"}),
        after=("gradient_buckets",),
        conflicts=("sharding",),
    )

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, not {self.rank}")
        if self.start_updates < 0:
            raise ValueError(f"start_updates must be at least 0, not {self.start_updates}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where buckets carry the gradients of a job that says what "not worse" means; at most their sum is saved."""
        if refusal := why_no_sum(facts, "buckets"):
            return Fit.no(refusal)
        if not facts.job.has_quality:
            return Fit.no("it changes the mathematics, and the job does not say what quality must hold")
        return Fit.yes(max_gain_frac=facts.phase_frac.get("sync", 0.0), settings=[cls(rank=4), cls(rank=1)])

    def apply(self, live: LiveJob) -> Undo:
        """Take the place of the plain sum of a bucket."""
        sync = bucket_sync(live, self.card.name)
        if sync.static_graph:
            raise JobError(
                "low_rank_gradients keeps an error for each bucket, and with static_graph buckets change after the first "
                "update: set static_graph = false in gradient_buckets."
            )
        return replace_attribute(sync, "compressor", _LowRank(self.rank, self.start_updates))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Fewer bytes were sent than the gradients hold."""
        sent, held = (int(trace.counters.get(name, 0)) for name in ("bucket_bytes_sent", "bucket_bytes"))
        return [Check("fewer bytes sent than the gradients hold", 0 < sent < held, f"{sent} of {held} bytes")]


class _LowRank:
    """Averages a bucket by PowerSGD."""

    def __init__(self, rank: int, start_updates: int) -> None:
        self._rank, self._start_updates = rank, start_updates
        self.reset()

    def average(self, bucket: GradBucket) -> tuple[Future, int]:
        """Begin to average a bucket; whole as long as the run is young."""
        buffer = bucket.buffer()
        young = self._updates < self._start_updates
        self._updates += bucket.is_last()
        if young:
            return average(buffer), buffer.numel() * buffer.element_size()
        before = self._state.total_numel_after_compression
        future: Future = self._hooks.powerSGD_hook(self._state, bucket)
        if buffer.device.type == "cpu":
            # Its messages follow one another in callbacks. On gloo these run in threads: those of two buckets would send in
            # another order on each rank, and wait for each other for ever.
            future.wait()
        return future, (self._state.total_numel_after_compression - before) * buffer.element_size()

    def reset(self) -> None:
        """Begin anew, with no error to feed back and the first random matrices."""
        self._updates = 0
        # As the hook counts, the updates that travel whole are over: buckets do not change here.
        self._state = self._hooks.PowerSGDState(
            None, matrix_approximation_rank=self._rank, start_powerSGD_iter=2, min_compression_rate=MIN_COMPRESSION
        )
        self._state.iter = self._state.start_powerSGD_iter

    @property
    def _hooks(self) -> Any:
        """The module of torch, which is slow to import and rarely needed."""
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415

        return powerSGD_hook
