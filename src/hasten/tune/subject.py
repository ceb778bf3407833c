"""What is tuned: a job or a script (`hasten.tune.scripts.subject`), with the rules in which they differ."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hasten.core.facts import Facts
from hasten.core.job import Job, Quality
from hasten.core.optimization import Optimization
from hasten.core.provenance import job_fingerprint
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.tune.record import Record
from hasten.tune.request import TuneRequest
from hasten.tune.search.job_processes import JobProcesses
from hasten.tune.search.screening import Processes, Screen
from hasten.tune.trials.trial import Trial, TrialSetting


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is tuned.

    Attributes:
        job: The job; for a script, an object that represents it.
        name: The name shown to users.
        fingerprint: Identifies the subject; evidence with another fingerprint belongs to another subject.
        commands: The command lines that tune it and that run it under the plan.
        kinds: The techniques that can act on it.
        is_uneven: Whether updates differ in length by nature, so that total times are compared instead of typical ones.
        processes: How a screening starts processes (with a seed) and brings them to the first counted update.
        losses: The losses of a fresh trial over the given number of counted updates.
        quality: What "not worse" means in the final proof; None if nothing defines it.
        finish: Records and writes everything else that belongs to the result.
        events_apart: Whether reports, checkpoints and validation are measured separately from the updates.
        whole_runs: Whether whole runs can be compared, and held-out data measured during the run.
    """

    job: Job
    name: str
    fingerprint: str
    commands: tuple[str, ...]
    kinds: Mapping[str, type[Optimization]]
    is_uneven: Callable[[Facts], bool]
    processes: Callable[[TrialSetting, int, Facts], Processes]
    losses: Callable[[Trial, int], list[float]]
    quality: Callable[[Screen], Quality | None]
    finish: Callable[[Record, Facts], None] = lambda _record, _facts: None
    events_apart: bool = True
    whole_runs: bool = True


def job_subject(request: TuneRequest) -> Subject:
    """Return the job that a request names, as a subject.

    Raises:
        TargetError: The job cannot be loaded.
    """
    job, target = load_job(request.target), shlex.quote(request.target)
    ranks = f" --ranks {request.ranks}" if request.ranks > 1 else ""
    tune = f"hasten tune {target} --budget {request.budget_s:.0f}s --out {request.folder}{ranks}{request.chosen_flags}"

    def losses(trial: Trial, updates: int) -> list[float]:
        counted: list[float] = trial.call("run", updates=updates)["losses"]
        return counted

    return Subject(
        job=job,
        name=type(job).__name__,
        fingerprint=job_fingerprint(job),
        commands=(tune, f"hasten run {target} --plan {request.folder}/hasten.toml{ranks}"),
        kinds=catalogue(),
        is_uneven=lambda _: job.overrides("length"),
        processes=lambda setting, seed, _: JobProcesses(setting=setting, seed=seed),
        losses=losses,
        quality=lambda _: job.quality,
    )
