"""Measure microbatch sizes in trial processes. A process that runs out of memory ends, and nothing needs to be undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from hasten.core.errors import TrialError
from hasten.core.facts import Facts, JobFacts
from hasten.core.machine import Machine, read_machine
from hasten.core.plan import Plan
from hasten.tune.batch.choice import Size, techniques
from hasten.tune.trials.machine_load import allowed_cores
from hasten.tune.trials.pair import warmup
from hasten.tune.trials.trial import Trial, TrialSetting
from hasten.tune.trials.turns import awake


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What is known of a job before any size is tried.

    Attributes:
        batch_size: The job's batch size.
        accumulation: The job's accumulation.
        device: `cpu`, `cuda`, ...
        indices: The samples of one optimizer batch, longest first.
        longest: Length of the longest sample.
        unit: Unit of that length: `items` or `bytes`.
        scanned: Number of samples that were read.
        num_samples: Number of samples in the dataset.
        refused: Name of a technique -> why it cannot be used with this job.
        host_limit_bytes: Main memory available.
    """

    batch_size: int
    accumulation: int
    device: str = "cpu"
    indices: tuple[int, ...] = ()
    longest: int = 0
    unit: str = "items"
    scanned: int = 0
    num_samples: int = 0
    refused: Mapping[str, str]
    host_limit_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """The cost of an update on the longest samples.

    Attributes:
        update_s: Seconds of the last update.
        typical_s: Seconds of one update on the job's own data.
        peak_bytes: Peak memory of the process.
        limit_bytes: Limit of that memory.
        retries: How often the allocator had to free memory before it could allocate.
    """

    update_s: float
    typical_s: float
    peak_bytes: int
    limit_bytes: int
    retries: int = 0


@dataclass(frozen=True)
class Turn:
    """The result of a turn: its speed, and whether other processes disturbed it."""

    samples_per_s: float
    spoilt: bool = False


class Race(Protocol):
    """Sizes that take turns."""

    def turn(self, size: Size, updates: int, number: int) -> Turn:
        """Do `updates` updates on the job's own data, in round `number`. Raises TrialError."""
        ...


class Lab(Protocol):
    """Measures sizes."""

    def survey(self) -> Survey:
        """Find the longest samples. Raises TrialError."""
        ...

    def hold(self, size: Size, updates: int) -> WorstCase:
        """Do `updates` updates on the longest samples, in a separate process. Raises TrialError, PlanError."""
        ...

    def race(self, sizes: Sequence[Size], *, together: bool) -> AbstractContextManager[Race]:
        """Let sizes take turns. `together`: keep all their processes alive side by side."""
        ...


@dataclass(kw_only=True)
class TrialLab:
    """A lab that uses trial processes.

    Attributes:
        setting: Settings that all trials share.
        base: The plan of the job. Techniques in it that set the microbatch size are replaced.
        scan_s: Seconds to search for the longest samples.
    """

    setting: TrialSetting
    base: Plan
    scan_s: float = 10.0
    indices: tuple[int, ...] = ()

    def survey(self) -> Survey:
        """Find the longest samples, and the techniques that cannot be used with this job."""
        with Trial(self.setting, self.plan(None)) as trial:
            answer = trial.call("longest", seconds=self.scan_s)
        job, machine = JobFacts(**answer["facts"]), read_machine()
        self.indices = tuple(answer["indices"])
        return Survey(
            batch_size=job.batch_size,
            accumulation=job.accumulation,
            device=job.device,
            indices=self.indices,
            longest=answer["sizes"][0],
            unit=answer["unit"],
            scanned=answer["scanned"],
            num_samples=answer["num_samples"],
            refused=_refused(job, machine),
            host_limit_bytes=machine.memory_limit_bytes.value,
        )

    def hold(self, size: Size, updates: int) -> WorstCase:
        """Run the longest samples in a fresh process."""
        with Trial(self.setting, self.plan(size)) as trial:
            return WorstCase(**trial.call("hold", indices=list(self.indices), updates=updates))

    @contextmanager
    def race(self, sizes: Sequence[Size], *, together: bool) -> Iterator[Race]:
        """Let processes take turns side by side, one awake at a time; otherwise use a fresh process for each turn."""
        if not together:
            yield _Fresh(self)
            return
        with ExitStack() as stack:
            trials = {size: stack.enter_context(Trial(self.setting, self.plan(size), wait=False)) for size in sizes}
            yield _Residents(trials)

    def plan(self, size: Size | None) -> Plan:
        """Return the base plan with the technique that produces `size`; None is the job's own. Raises PlanError."""
        plan = self.base
        for name in techniques():
            plan = plan.minus(name)
        more = size.optimization() if size else None
        return plan.plus(more) if more else plan


def _refused(job: JobFacts, machine: Machine) -> dict[str, str]:
    facts = Facts(machine=machine, job=job)
    fits = {name: kind.fit(facts) for name, kind in techniques().items()}
    return {name: fit.reason for name, fit in fits.items() if not fit.fits}


class _Residents:
    """Processes that are alive side by side. All but the one whose turn it is are frozen."""

    def __init__(self, trials: dict[Size, Trial]) -> None:
        self._trials, self._cores = trials, sorted(allowed_cores())
        self._ready: set[Size] = set()
        self._failed: dict[Size, TrialError] = {}
        for size, trial in trials.items():
            try:
                trial.wait_until_loaded()
            except TrialError as error:
                self._failed[size] = error
        for trial in trials.values():
            trial.freeze()

    def turn(self, size: Size, updates: int, number: int) -> Turn:
        """Take one turn. The first one warms up before."""
        if size in self._failed:
            raise self._failed[size]
        core = self._cores[number // 2 % len(self._cores)]  # each core is used with both orders
        return awake(self._trials[size], lambda trial: self._run(trial, size, updates, core))

    def _run(self, trial: Trial, size: Size, updates: int, core: int) -> Turn:
        if size not in self._ready:
            _warm(trial, updates)
            self._ready.add(size)
        return _timed(trial, updates, core)


class _Fresh:
    """A process for each turn, if all of them together would need too much memory."""

    def __init__(self, lab: TrialLab) -> None:
        self._lab, self._cores = lab, sorted(allowed_cores())

    def turn(self, size: Size, updates: int, number: int) -> Turn:
        """Take one turn, at the start of the run."""
        with Trial(self._lab.setting, self._lab.plan(size)) as trial:
            _warm(trial, updates)
            return _timed(trial, updates, self._cores[number // 2 % len(self._cores)])


def _warm(trial: Trial, updates: int) -> None:
    trial.call("warm", **warmup(trial, 1))
    trial.call("rewind")
    trial.call("prime", updates=updates)


def _timed(trial: Trial, updates: int, core: int) -> Turn:
    answer = trial.call("run", updates=updates, core=core)
    return Turn(sum(answer["items"]) / max(sum(answer["times"]), 1e-9), spoilt=answer["spoilt"])
