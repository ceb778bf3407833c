"""Measure what must be known before the first candidate: where the plain job's time goes, and what its trials cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic

from hasten.core.errors import JobError
from hasten.core.facts import Facts, JobFacts
from hasten.core.plan import Plan
from hasten.profile.diagnosis import Diagnosis
from hasten.tune.budget import Costs
from hasten.tune.record import Record
from hasten.tune.subject import Subject
from hasten.tune.trials.pair import turns_that_fit
from hasten.tune.trials.trial import Trial, TrialSetting

PROFILE_FRAC = 0.005
"""Share of the budget for each measured run of the profile."""
VALIDATION_S = 3.0
"""About how long a measurement of held-out data may take, in seconds."""
EMPTY = Plan()


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What is known of the plain job.

    Attributes:
        facts: Its measured facts.
        diagnosis: Its bottleneck.
        costs: What its trials cost, in seconds.
        turns: How many turns the two processes of a pair may take.
        max_batches: How many held-out batches to measure; None for all.
    """

    facts: Facts
    diagnosis: Diagnosis
    costs: Costs
    turns: int
    max_batches: int | None


def measure_baseline(subject: Subject, setting: TrialSetting, seed: int, record: Record) -> Baseline:
    """Profile the plain job in its own process, and store the profile in the record.

    Raises:
        TrialError: The plain job could not be run.
        JobError: The job does not return the metric that its quality names.
    """
    started = monotonic()
    with Trial(setting, EMPTY, seed=seed) as trial:
        start_s = monotonic() - started
        slice_s = min(max(PROFILE_FRAC * record.budget.seconds, 0.5), 5.0)
        answer = trial.call("profile", slice_s=slice_s, quick=False, folder=str(record.out.resolve()))
        if subject.job.quality is not None:
            _check_metric(subject, subject.job.quality.metric, trial.call("validate", max_batches=1)["metrics"])
    profile = answer["profile"]
    facts = Facts(machine=record.machine, job=JobFacts(**profile["job"]), **answer["facts"])
    record.note_profile(profile, facts)
    turns = turns_that_fit(facts)
    batches, batch_s = profile["validation"]["batches"], profile["validation"]["batch_s"]
    max_batches = min(batches, max(int(VALIDATION_S / batch_s), 1)) if batch_s else None
    costs = Costs(
        start_s=start_s,
        base_update_s=facts.step_ms / 1e3,
        validation_s=batch_s * (max_batches or 0),
        side_by_side=turns > 1 and not setting.command,
        of_script=bool(setting.command),
    )
    diagnosis = Diagnosis.from_dict(profile["bottleneck"])
    return Baseline(facts=facts, diagnosis=diagnosis, costs=costs, turns=turns, max_batches=max_batches)


def losses_of_another_seed(
    subject: Subject, setting: TrialSetting, seed: int, updates: int, costs: Costs
) -> tuple[list[float], Costs]:
    """Return the losses of the plain job with another seed, which show how much chance moves the curve, and the costs.

    The first process may have compiled kernels and prepared data. This one starts as all later ones do, so the returned
    costs contain its start time if that is shorter.
    """
    started = monotonic()
    with Trial(setting, EMPTY, seed=seed + 1) as trial:
        start_s = min(costs.start_s, monotonic() - started)
        return subject.losses(trial, max(3 * updates // 2, 8)), replace(costs, start_s=start_s)


def _check_metric(subject: Subject, name: str, metrics: dict[str, float]) -> None:
    if name not in metrics:
        message = f"quality names the metric {name!r}, but the job returns only {sorted(metrics)}"
        raise JobError(f"{subject.name}.{message}. Let metric(model, batch) return it, or name another metric.")
