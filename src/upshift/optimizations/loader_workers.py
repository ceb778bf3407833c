"""Fetch batches in worker processes while the model trains.

Relieves:  input: reading and preparing samples overlaps with compute.
Numerics:  exact: a sample's randomness is a function of (seed, epoch, index), whoever fetches it.
Limits:    map-style datasets; processes take cores from the training where it needs them itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upshift.core.errors import JobError
from upshift.core.facts import Facts
from upshift.core.live import LiveJob, LoaderSettings, Seam, Undo
from upshift.core.optimization import Bottleneck, Card, Check, Fit, Numerics, Optimization, StepTrace

MAX_WAITING_WORKERS = 16
MOSTLY_WAITING = 0.5


@dataclass(frozen=True, kw_only=True)
class LoaderWorkers(Optimization):
    """Loader worker processes.

    Attributes:
        num_workers: How many; 0 is off (the training process fetches itself).
        prefetch_factor: Batches each keeps ready.
        persistent: Keep them between epochs.
        pin_memory: Page-locked batches, for an accelerator.
    """

    num_workers: int = 2
    prefetch_factor: int = 2
    persistent: bool = True
    pin_memory: bool = False

    card: ClassVar[Card] = Card(
        name="loader_workers",
        summary="batches fetched by worker processes while the model trains",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.LOADER,
        source="PyTorch documentation, torch.utils.data, multi-process data loading",
        prior=0.5,
        claims=frozenset({"workers"}),
        conflicts=("sample_cache",),
    )

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch_factor < 1:
            seen = f"{self.num_workers} and {self.prefetch_factor}"
            raise ValueError(f"num_workers must be at least 0 and prefetch_factor at least 1, not {seen}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit for input that can be fetched by index; more workers than cores only where fetching mostly waits."""
        if facts.job.num_samples is None:
            return Fit.no("an iterable dataset would be read once by each worker")
        if facts.job.num_workers:
            return Fit.no(f"{facts.job.num_workers} workers are at work already")
        cores, pin = facts.machine.cores.value, facts.job.device == "cuda"
        if facts.input_wait_frac > MOSTLY_WAITING:
            counts = [min(4 * cores, MAX_WAITING_WORKERS), cores]
        else:
            counts = [max(cores - 1, 1), cores] if cores > 1 else [1]
        settings = [cls(num_workers=count, pin_memory=pin) for count in dict.fromkeys(counts)]
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input"), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Set the loader."""
        if live.order is None:
            raise JobError("loader_workers needs a map-style dataset: take it out of the plan.")
        old = live.loader
        live.loader = LoaderSettings(
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent=self.persistent and self.num_workers > 0,
            pin_memory=self.pin_memory,
        )

        def undo() -> None:
            live.loader = old

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The workers are alive while the step runs."""
        alive = int(trace.counters.get("workers_alive", 0))
        return [Check("worker processes alive", alive >= self.num_workers, f"{alive} of {self.num_workers}")]
