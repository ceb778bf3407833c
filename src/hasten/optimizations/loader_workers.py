"""Fetch batches in worker processes while the model trains.

Relieves:  input: reading and preparing samples overlaps with compute.
Numerics:  exact: the randomness of a sample is a function of (seed, epoch, index), independent of the process. A change of
           `threads` is rounding, because sums are taken in a different order.
Limits:    map-style datasets. On a CPU, workers compete with training for cores, and threads that wait for one another on
           busy cores can be slower than a single thread (see `threads`). Batches pass through shared memory; if it is full,
           the system kills the worker with a bus error. In a script, workers are started for each epoch, so that they see
           what the script changes between epochs, unless the script itself sets `persistent_workers`.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError

MAX_WAITING_WORKERS = 16
"""Largest number of workers if fetching mostly waits."""
MOSTLY_WAITING = 0.5
"""Share of waiting in the fetching time above which fetching counts as mostly waiting."""
SHARED_MEMORY_SHARE = 0.5
"""Largest share of the free shared memory for prefetched batches. The rest is for other processes and ranks."""


@dataclass(frozen=True, kw_only=True)
class LoaderWorkers(Optimization):
    """Loader worker processes.

    Attributes:
        num_workers: Number of worker processes. 0 is off: the training process fetches the batches.
        prefetch_factor: Number of batches that each worker keeps ready.
        persistent: Keep workers between epochs, in Hasten's training loop. In a script, its own `persistent_workers`
            decides, because persistent workers do not see what the script changes.
        pin_memory: Use page-locked batches, for an accelerator.
        threads: Number of threads per operator in training, to leave cores to the workers; 0 does not change it.
    """

    num_workers: int = 2
    prefetch_factor: int = 2
    persistent: bool = True
    pin_memory: bool = False
    threads: int = 0

    card: ClassVar[Card] = Card(
        name="loader_workers",
        summary="fetch batches in worker processes while the model trains",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.LOADER,
        source="PyTorch documentation, torch.utils.data, multi-process data loading",
        hoped_gain=("30 % faster with 4 workers, in one user's case (https://github.com/harryjo97/GDSS/issues/13)"),
        prior=0.5,
        claims=frozenset({"workers"}),
        conflicts=("sample_cache",),
        traits=frozenset({Trait.OTHER_DRAWS}),
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch_factor < 1 or self.threads < 0:
            values = f"{self.num_workers}, {self.prefetch_factor} and {self.threads}"
            message = f"num_workers must be at least 0, prefetch_factor at least 1 and threads at least 0, not {values}"
            raise ValueError(message)

    @property
    def numerics(self) -> Numerics:
        """Numerics class of this setting: rounding if `threads` is set, because sums are then taken in another order."""
        return Numerics.ROUNDING if self.threads else self.card.numerics

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to map-style datasets. More workers than cores are tried only if fetching mostly waits.

        If the job already uses workers, it is unknown whether they wait or compute, so other numbers of workers are tried.
        """
        if why := facts.job.why_not_by_index:
            return Fit.no(why)
        if facts.job.num_threads:
            return Fit.no(f"the job already prefetches in {facts.job.num_threads} threads")
        room, free = _batches_that_fit(facts), facts.machine.shared_memory_bytes
        if room == 0:
            batch = f"{_batch_bytes(facts) / 2**20:.0f} MiB"
            return Fit.no(
                f"a batch takes {batch}, more than half of the shared memory that workers pass it through "
                f"({free.value / 2**20:.0f} MiB, {free.reason}): enlarge it (docker run --shm-size)"
            )
        pin = facts.job.device == "cuda"
        guesses = _others(facts) or [*_sharing(facts), *((count, prefetch, 0) for count, prefetch in _guesses(facts))]
        wanted = dict.fromkeys((*_bounded(count, prefetch, room), threads) for count, prefetch, threads in guesses)
        settings = [
            cls(num_workers=count, prefetch_factor=prefetch, pin_memory=pin, threads=threads)
            for count, prefetch, threads in wanted
        ]
        return Fit.yes(max_gain_frac=min(facts.ceiling_frac("input"), _overlap_frac(facts)), settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Set the workers of the loader."""
        if live.order is None:
            raise JobError("loader_workers needs a map-style dataset: remove it from the plan.")
        old = live.loader
        live.loader = replace(
            old,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent=self.persistent and self.num_workers > 0,
            pin_memory=self.pin_memory or old.pin_memory,
        )

        before = torch.get_num_threads()
        if self.threads:
            torch.set_num_threads(self.threads)

        def undo() -> None:
            live.loader = old
            if self.threads:
                torch.set_num_threads(before)

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the workers are alive while the step runs."""
        alive = int(trace.counters.get("workers_alive", 0))
        if not self.num_workers:
            return [Check("no worker process alive", alive == 0, f"{alive} alive")]
        checks = [Check("worker processes alive", alive >= self.num_workers, f"{alive} of {self.num_workers}")]
        if self.threads:
            now = torch.get_num_threads()
            checks.append(Check("threads per operator", now == self.threads, str(now)))
        return checks

    def by_hand(self) -> tuple[str, ...]:
        """Return the loader arguments."""
        return (f"DataLoader(..., {', '.join(f'{name}={value}' for name, value in self._arguments().items())})",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set the loader arguments and the number of threads. `persistent_workers` is left unchanged."""
        unused = {} if self.num_workers else {"prefetch_factor": "None", "persistent_workers": "False"}
        loader, forks = script.loader(), multiprocessing.get_all_start_methods()[0] == "fork"
        if self.num_workers and not forks and (place := script.trains_on_import()):
            raise UnwritableError(
                f"each worker imports the script on this platform, so {place} would start training again in it: first move "
                f'the training into a function that is called under `if __name__ == "__main__":`'
            )
        change = loader.set(self._arguments(), where_given=unused)
        if self.num_workers:
            change += (
                "; persistent_workers is unchanged, because persistent workers do not see what the script changes between "
                "epochs"
            )
        return f"{change}; {script.call_once('torch.set_num_threads', str(self.threads))}" if self.threads else change

    def _arguments(self) -> dict[str, str]:
        values = {"num_workers": str(self.num_workers)}
        if self.num_workers:
            values |= {"prefetch_factor": str(self.prefetch_factor)}
        return values | ({"pin_memory": "True"} if self.pin_memory else {})

    def framework_arguments(self) -> dict[str, str]:
        """Return the arguments of the Trainer, which creates the loader."""
        arguments = f"dataloader_num_workers={self.num_workers}, dataloader_prefetch_factor={self.prefetch_factor}"
        return {"transformers.TrainingArguments": arguments}


def _guesses(facts: Facts) -> list[tuple[int, int]]:
    """Return candidates (workers, prefetch factor): a rule of thumb, then more prefetch, other counts, fewer workers.

    If fetching computes, one core is left to training. If it mostly waits, workers hardly need a core.
    """
    cores = facts.machine.cores.value
    if facts.input_wait_frac > MOSTLY_WAITING:
        first, second = min(4 * cores, MAX_WAITING_WORKERS), cores
    else:
        first, second = max(cores - 1, 1), cores
    return [(first, 2), (first, 4), (second, 2), (max(first // 2, 1), 2)]


def _sharing(facts: Facts) -> list[tuple[int, int, int]]:
    """Return candidates (workers, prefetch factor, threads) that divide the cores of a CPU between reading and training.

    The last candidate trains in a single thread. There are none if fetching mostly waits, as workers then need no cores.
    """
    cores = facts.machine.cores.value
    if facts.job.device != "cpu" or facts.input_wait_frac > MOSTLY_WAITING or cores < 2:
        return []
    workers = min(max(round(cores * facts.phase_frac.get("data", 0.0)), 1), cores)
    return [(workers, 2, max(cores - workers, 1)), (cores, 2, 1)]


def _overlap_frac(facts: Facts) -> float:
    """Return the largest share of the time that overlap can save, given the number of cores.

    If fetching computes, its work and that of training are at best spread over all cores. If the job already uses workers,
    their computing time is unknown: with more of them, the gain is at most the ratio of their numbers.
    """
    if own := facts.job.num_workers:
        most = max((count for count, _, _ in _others(facts)), default=own)
        return 1.0 - own / most if most > own else 1.0
    cores, data = facts.machine.cores.value, facts.phase_frac.get("data", 0.0)
    rest, busy = 1.0 - data, data * (1.0 - facts.input_wait_frac)
    training = rest * min(facts.operator_threads, cores) if facts.job.device == "cpu" else 0.0
    return 1.0 - max((busy + training) / cores, rest)


def _others(facts: Facts) -> list[tuple[int, int, int]]:
    """Return candidates with other numbers of workers, if the job already uses workers.

    If there are more workers than cores, fewer are tried; otherwise more are tried. 0 is never tried: without workers,
    changes that the script makes during an epoch would affect samples that they do not affect now.
    """
    count, cores = facts.job.num_workers, facts.machine.cores.value
    if not count:
        return []
    wanted = [cores, max(cores - 1, 1)] if count > cores else [min(4 * cores, MAX_WAITING_WORKERS), cores]
    return [(other, 2, 0) for other in dict.fromkeys(wanted) if other != count]


def _batch_bytes(facts: Facts) -> int:
    """Return the size of one batch in bytes, or 0 if the size of a sample could not be measured."""
    return int((facts.sample_bytes or 0) * facts.job.batch_size / max(1.0 - facts.padding_frac, 0.01))


def _batches_that_fit(facts: Facts) -> int | None:
    """Return how many batches fit in shared memory at once, or None if the size of a batch is unknown."""
    batch, free = _batch_bytes(facts), facts.machine.shared_memory_bytes.value
    return None if batch == 0 else int(SHARED_MEMORY_SHARE * free) // batch


def _bounded(workers: int, prefetch: int, room: int | None) -> tuple[int, int]:
    """Limit the prefetched batches to `room`, first by a smaller prefetch factor, then by fewer workers."""
    if room is None or workers * prefetch <= room:
        return workers, prefetch
    return (workers, room // workers) if room >= workers else (room, 1)
