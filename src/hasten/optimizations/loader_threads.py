"""Prefetch batches in threads of the training process.

Relieves:  input: waiting for a disk or the network, and decoding that releases Python's global interpreter lock, overlap
           with compute.
Numerics:  exact: threads run only code that draws no random numbers, and batches arrive in the same order.
Limits:    map-style datasets that are thread-safe and draw no random numbers when reading. The random transform and the
           job's own collate function still run in the training thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute

MAX_WAITING_THREADS = 16
"""Largest number of threads if fetching mostly waits."""
MOSTLY_WAITING = 0.5
"""Share of waiting in the fetching time above which fetching counts as mostly waiting."""


@dataclass(frozen=True, kw_only=True)
class LoaderThreads(Optimization):
    """Threads that prefetch batches.

    Attributes:
        num_threads: Number of threads.
        ahead: Number of batches that are ready or being read at the same time.
    """

    num_threads: int = 2
    ahead: int = 4

    card: ClassVar[Card] = Card(
        name="loader_threads",
        summary="prefetch batches in threads of the training process, without copies between processes",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.LOADER,
        source="SPDL, thread-based data loading, https://github.com/facebookresearch/spdl",
        prior=0.6,
        claims=frozenset({"workers"}),
        script_advice=(
            "the script's dataset may not be thread-safe: DataLoader(..., num_workers=...) prefetches in worker processes"
        ),
    )

    def __post_init__(self) -> None:
        if self.num_threads < 1 or self.ahead < 1:
            raise ValueError(f"num_threads and ahead must be at least 1, not {self.num_threads} and {self.ahead}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if reading draws no random numbers, and either mostly waits or can use a second core."""
        job, cores = facts.job, facts.machine.cores.value
        if why := job.why_not_by_index:
            return Fit.no(why)
        if job.num_workers:
            return Fit.no(f"the job already uses {job.num_workers} worker processes")
        if job.num_threads:
            return Fit.no(f"the job already prefetches in {job.num_threads} threads")
        if job.load_is_random:
            return Fit.no(
                "reading a sample may draw random numbers, and threads share the random generators: "
                "declare the deterministic part of the preparation (deterministic_transform), or use loader_workers"
            )
        waits = facts.input_wait_frac > MOSTLY_WAITING
        if cores == 1 and not waits:
            return Fit.no("the machine has one core, and reading computes more than it waits: nothing can overlap")
        counts = [min(4 * cores, MAX_WAITING_THREADS), cores] if waits else [cores - 1, cores]
        partly = job.finish_is_random or job.collate_is_random
        settings = [cls(num_threads=count, ahead=2 * count) for count in dict.fromkeys(counts)]
        share = facts.load_frac if partly else 1.0
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input") * share, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Set the threads of the loader."""
        if live.order is None:
            raise JobError("loader_threads needs a map-style dataset: remove it from the plan.")
        if live.pipeline.load_is_random:
            raise JobError(
                "Reading a sample may draw random numbers, and threads share the random generators: "
                "implement deterministic_transform(self, sample), or remove loader_threads from the plan."
            )
        return replace_attribute(live, "loader", replace(live.loader, num_threads=self.num_threads, ahead=self.ahead))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that threads read the batches of the step."""
        count = int(trace.counters.get("batches_by_threads", 0))
        return [Check("batches read by threads", count > 0, f"{count} batches")]
