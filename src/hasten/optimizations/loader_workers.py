"""Fetch batches in worker processes while the model trains.

Relieves:  input: reading and preparing samples overlaps with compute.
Numerics:  exact: a sample's randomness is a function of (seed, epoch, index), whoever fetches it. With other `threads`:
           rounding, as they add in another order.
Limits:    map-style datasets; processes take cores from the training where it needs them itself (on a CPU, threads that
           wait for one another at a core that is taken are slower than one thread: `threads`); batches are handed over
           through shared memory, and a worker that finds it full is killed by the system (a bus error). In a script, workers
           are forked for each epoch, so that what the script changes between epochs reaches them; only where the script
           has set `persistent_workers` itself do they outlive one.
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
MOSTLY_WAITING = 0.5
SHARED_MEMORY_SHARE = 0.5
"""Share of the free shared memory that batches under way may fill; the rest is for other processes and other ranks."""


@dataclass(frozen=True, kw_only=True)
class LoaderWorkers(Optimization):
    """Loader worker processes.

    Attributes:
        num_workers: How many; 0 is off (the training process fetches itself).
        prefetch_factor: Batches each keeps ready.
        persistent: Keep them between epochs, in our own loop. In a script its own `persistent_workers` decides: kept workers
            never hear of what it changes.
        pin_memory: Page-locked batches, for an accelerator.
        threads: Threads within an operator of the training, which leave cores to the workers; 0 leaves them as they are.
    """

    num_workers: int = 2
    prefetch_factor: int = 2
    persistent: bool = True
    pin_memory: bool = False
    threads: int = 0

    card: ClassVar[Card] = Card(
        name="loader_workers",
        summary="batches fetched by worker processes while the model trains",
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
            seen = f"{self.num_workers}, {self.prefetch_factor} and {self.threads}"
            words = f"num_workers must be at least 0, prefetch_factor at least 1 and threads at least 0, not {seen}"
            raise ValueError(words)

    @property
    def numerics(self) -> Numerics:
        """Other threads sum in another order."""
        return Numerics.ROUNDING if self.threads else self.card.numerics

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit for input that can be fetched by index; more workers than cores only where fetching mostly waits.

        Where workers are at work already, whether they wait or compute cannot be seen: other numbers of them are tried.
        """
        if facts.job.num_samples is None:
            return Fit.no("an iterable dataset would be read once by each worker")
        if facts.job.num_threads:
            return Fit.no(f"{facts.job.num_threads} threads read ahead already")
        room, free = _batches_that_fit(facts), facts.machine.shared_memory_bytes
        if room == 0:
            batch = f"{_batch_bytes(facts) / 2**20:.0f} MiB"
            return Fit.no(
                f"a batch takes {batch}, more than half of the shared memory ({free.value / 2**20:.0f} MiB, {free.reason}) "
                f"that workers hand it over in: enlarge it (docker run --shm-size)"
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
        """Set the loader."""
        if live.order is None:
            raise JobError("loader_workers needs a map-style dataset: take it out of the plan.")
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
        """The workers are alive while the step runs."""
        alive = int(trace.counters.get("workers_alive", 0))
        if not self.num_workers:
            return [Check("no worker process alive", alive == 0, f"{alive} alive")]
        found = [Check("worker processes alive", alive >= self.num_workers, f"{alive} of {self.num_workers}")]
        now = torch.get_num_threads()
        return [*found, Check("threads within an operator", now == self.threads, str(now))] if self.threads else found

    def by_hand(self) -> tuple[str, ...]:
        """The loader's arguments."""
        return (f"DataLoader(..., {', '.join(f'{name}={value}' for name, value in self._arguments().items())})",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set the loader's arguments, and the threads of the process; whether workers persist stays the script's."""
        unused = {} if self.num_workers else {"prefetch_factor": "None", "persistent_workers": "False"}
        loader, forks = script.loader(), multiprocessing.get_all_start_methods()[0] == "fork"
        if self.num_workers and not forks and (place := script.trains_on_import()):
            raise UnwritableError(
                f"each worker imports the script here, and {place} would train again in it: put the training into a "
                f'function that is called under `if __name__ == "__main__":` first'
            )
        words = loader.set(self._arguments(), where_given=unused)
        if self.num_workers:
            words += (
                "; persistent_workers is left alone: kept workers would not hear of what the script changes between epochs"
            )
        return f"{words}; {script.call_once('torch.set_num_threads', str(self.threads))}" if self.threads else words

    def _arguments(self) -> dict[str, str]:
        values = {"num_workers": str(self.num_workers)}
        if self.num_workers:
            values |= {"prefetch_factor": str(self.prefetch_factor)}
        return values | ({"pin_memory": "True"} if self.pin_memory else {})

    def framework_arguments(self) -> dict[str, str]:
        """The Trainer makes the loader."""
        arguments = f"dataloader_num_workers={self.num_workers}, dataloader_prefetch_factor={self.prefetch_factor}"
        return {"transformers.TrainingArguments": arguments}


def _guesses(facts: Facts) -> list[tuple[int, int]]:
    """(workers, batches each keeps ready): the rule of thumb first, then more prefetch, other counts, fewer workers.

    Where fetching computes, a core is left to the training; where it waits, workers hardly need one.
    """
    cores = facts.machine.cores.value
    if facts.input_wait_frac > MOSTLY_WAITING:
        first, second = min(4 * cores, MAX_WAITING_WORKERS), cores
    else:
        first, second = max(cores - 1, 1), cores
    return [(first, 2), (first, 4), (second, 2), (max(first // 2, 1), 2)]


def _sharing(facts: Facts) -> list[tuple[int, int, int]]:
    """Workers and threads that share the cores of a CPU, as reading and training share the time; and one thread alone.

    Only where fetching computes: workers that wait take no core from anybody.
    """
    cores = facts.machine.cores.value
    if facts.job.device != "cpu" or facts.input_wait_frac > MOSTLY_WAITING or cores < 2:
        return []
    workers = min(max(round(cores * facts.phase_frac.get("data", 0.0)), 1), cores)
    return [(workers, 2, max(cores - workers, 1)), (cores, 2, 1)]


def _overlap_frac(facts: Facts) -> float:
    """The share of the time that can be saved at most by doing two things at once: cores do no more than they can.

    Where fetching computes, its work and that of the training are shared out over all cores at best. Where workers are at
    work already, how much they compute is not known, and only the ceiling of the input bounds what others would bring.
    """
    if facts.job.num_workers:
        return 1.0
    cores, data = facts.machine.cores.value, facts.phase_frac.get("data", 0.0)
    rest, busy = 1.0 - data, data * (1.0 - facts.input_wait_frac)
    training = rest * min(facts.operator_threads, cores) if facts.job.device == "cpu" else 0.0
    return 1.0 - max((busy + training) / cores, rest)


def _others(facts: Facts) -> list[tuple[int, int, int]]:
    """Other numbers of workers than those at work, where there are any.

    Too many for the cores: fewer. Else more, as for fetching that waits. Never none: without workers, what the script
    changes during an epoch would reach samples that it does not reach now.
    """
    count, cores = facts.job.num_workers, facts.machine.cores.value
    if not count:
        return []
    wanted = [cores, max(cores - 1, 1)] if count > cores else [min(4 * cores, MAX_WAITING_WORKERS), cores]
    return [(other, 2, 0) for other in dict.fromkeys(wanted) if other != count]


def _batch_bytes(facts: Facts) -> int:
    """Bytes of one batch; 0 where the size of a sample could not be measured."""
    return int((facts.sample_bytes or 0) * facts.job.batch_size / max(1.0 - facts.padding_frac, 0.01))


def _batches_that_fit(facts: Facts) -> int | None:
    """How many batches may be under way in shared memory at once; None where nothing bounds them."""
    batch, free = _batch_bytes(facts), facts.machine.shared_memory_bytes.value
    return None if batch == 0 else int(SHARED_MEMORY_SHARE * free) // batch


def _bounded(workers: int, prefetch: int, room: int | None) -> tuple[int, int]:
    """At most `room` batches under way: less prefetch first, then fewer workers."""
    if room is None or workers * prefetch <= room:
        return workers, prefetch
    return (workers, room // workers) if room >= workers else (room, 1)
