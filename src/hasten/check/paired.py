"""Compare two versions in paired, interleaved trials, each version in a worktree of its own.

A tight interval speaks only for its session: the layout of memory, the placement of files and the state of the machine are
the same for all its pairs. A slower verdict must therefore recur in fresh worktrees with fresh processes.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from hasten.check.repository import Repository, Version
from hasten.check.result import (
    SIDE_BY_SIDE,
    CheckResult,
    PhaseChange,
    change_words,
    changed_phase,
    conclude,
    joined,
    memory_change,
    quality_change,
)
from hasten.check.subject import Subject, check_loaded, environment_differences
from hasten.core.errors import TrialError
from hasten.core.facts import Facts, JobFacts
from hasten.core.job import Quality
from hasten.core.machine import Machine
from hasten.core.plan import Plan
from hasten.core.stats import TRAINING_LOSS, Verdict
from hasten.report.words import wall_ms
from hasten.train.process_group import read_shared_machine
from hasten.tune.baseline import VALIDATION_S
from hasten.tune.proof.compare import Comparison, compare
from hasten.tune.scripts.processes import ScriptProcesses
from hasten.tune.trials.pair import WARMUP_UPDATES, Design, turns_that_fit
from hasten.tune.trials.trial import Trial, TrialSetting
from hasten.tune.trials.turns import named

COUNTED_S = 2.5
"""Seconds that the counted updates of a process take, unless their number is given."""
MIN_UPDATES, MAX_UPDATES = 8, 5000
PROFILE_FRAC, MIN_PROFILE_S, MAX_PROFILE_S = 0.002, 0.2, 1.0
"""Length of each measured run of a profile: share of the budget, and its limits in seconds."""
FIRST_FRAC = 0.55
"""Share of the budget for the first session. The rest may be needed to confirm it."""
SESSION_LOOKS = (5, 7, 10, 14, 20)
"""Numbers of pairs at which a session may end. A noisy machine needs more than a tuning would spend on one comparison."""
SESSION_SEEDS = 1000
"""Distance between the seeds of two sessions."""
EMPTY = Plan()


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a check is run.

    Attributes:
        budget_s: Time budget in seconds.
        floor_frac: The smallest change that counts.
        updates: Counted updates of each process; None for as many as take a few seconds.
        seed: Seed of the first pair; None for the job's own.
        quality: Measure the held-out data of jobs too.
    """

    budget_s: float
    floor_frac: float
    updates: int | None = None
    seed: int | None = None
    quality: bool = True


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What one process reports of a version before anything is compared.

    Attributes:
        described: The environment and the properties of the job, see `Worker.describe`.
        facts: The measured facts.
        phases_ms: Phase -> milliseconds of an update.
        most_updates: Most updates that a script can count; None if it did not end.
        max_batches: Held-out batches that take a few seconds; None for all.
        metrics: Names of the held-out metrics.
    """

    described: Mapping[str, Any]
    facts: Facts
    phases_ms: dict[str, float]
    most_updates: int | None = None
    max_batches: int | None = None
    metrics: frozenset[str] = frozenset()

    @property
    def quality(self) -> Quality | None:
        """The job's quality metric."""
        return Quality(**self.described["quality"]) if self.described.get("quality") else None


@dataclass(frozen=True, kw_only=True)
class Session:
    """One session: its comparison, and the reports of the base (A) and the candidate (B)."""

    comparison: Comparison
    arms: Mapping[str, Prepared]


def prepare(setting: TrialSetting, options: Options) -> Prepared:
    """Start a version once: check that it trains, and measure its phases.

    Raises:
        TrialError: It does not train. The message names the version.
    """
    slice_s = min(max(PROFILE_FRAC * options.budget_s, MIN_PROFILE_S), MAX_PROFILE_S)
    max_batches, metrics = None, frozenset[str]()
    with named((), setting.label), Trial(setting, EMPTY, seed=options.seed) as trial:
        described = trial.call("describe")
        answer = trial.call("profile", slice_s=slice_s, quick=True)
        if described.get("quality") and options.quality:
            started = monotonic()
            metrics = frozenset(trial.call("validate", max_batches=1)["metrics"])
            max_batches = max(int(VALIDATION_S / max(monotonic() - started, 1e-3)), 1)
    profile, measured = answer["profile"], answer["facts"]
    facts = Facts(machine=read_shared_machine(setting.ranks), job=JobFacts(**profile["job"]), **measured)
    whole_ms = wall_ms(facts.phase_frac, facts.step_ms) or 0.0
    return Prepared(
        described=described,
        facts=facts,
        phases_ms={name: share * whole_ms for name, share in facts.phase_frac.items()},
        most_updates=_counted(profile["steps"]) if profile.get("ended") else None,
        max_batches=max_batches,
        metrics=metrics,
    )


def design_of(prepared: Mapping[str, Prepared], options: Options, deadline: float, *, of_script: bool) -> Design:
    """Return how the processes of a session are run, given what both versions reported."""
    base = prepared["A"]
    step_s = max(arm.facts.step_ms for arm in prepared.values()) / 1e3
    updates = options.updates or int(min(max(COUNTED_S / max(step_s, 1e-6), MIN_UPDATES), MAX_UPDATES))
    ends = [arm.most_updates for arm in prepared.values() if arm.most_updates is not None]
    events = of_script and any(arm.facts.validation_s > 0 or arm.facts.checkpoint_s > 0 for arm in prepared.values())
    quality = base.quality
    if quality is not None and not all(quality.metric in arm.metrics for arm in prepared.values()):
        quality = None  # not asked for, or one version does not return it
    return Design(
        updates=max(min([updates, *ends]), 1),
        uneven=events or bool(base.described.get("uneven")),
        seed=base.described.get("seed", 0) if options.seed is None else options.seed,
        quality=Quality(metric=TRAINING_LOSS, margin=math.inf) if of_script else quality,
        max_batches=base.max_batches,
        deadline=deadline,
        looks=SESSION_LOOKS,
        min_floor_frac=options.floor_frac,
        turns=min(turns_that_fit(arm.facts) for arm in prepared.values()),
    )


def run_session(
    repository: Repository, subject: Subject, versions: tuple[Version, Version], options: Options, *, deadline: float,
    say: Callable[[str], None], number: int = 0,
) -> Session:  # fmt: skip
    """Compare two versions, the base and the candidate, in new worktrees. No pair starts after the (monotonic) deadline.

    Raises:
        TrialError: A version does not train.
        HastenError: A version cannot be checked out, lacks the target, or would not run its own code.
    """
    say("checking out both versions" if not number else "checking out both versions again, to see whether it recurs")
    with repository.checked_out(versions) as trees, tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        settings, prepared = {}, {}
        for arm, tree, version in zip("AB", trees, versions, strict=True):
            label = f"{'The base' if arm == 'A' else 'The candidate'} {version.name}"
            settings[arm] = subject.setting(Path(scratch), label, lambda words: say(f"  {words}"), tree, repository.root)
        for arm, tree in zip("AB", trees, strict=True):
            say(f"measuring the phases of the {'base' if arm == 'A' else 'candidate'}")
            prepared[arm] = prepare(settings[arm], options)
            check_loaded(prepared[arm].described, settings[arm].label, tree, repository)
        design = design_of(prepared, options, deadline, of_script=bool(subject.command))
        design = replace(design, seed=design.seed + number * SESSION_SEEDS)
        return Session(comparison=compare_settings(settings, design, say), arms=prepared)


def compare_settings(settings: Mapping[str, TrialSetting], design: Design, say: Callable[[str], None]) -> Comparison:
    """Compare two settings, with fewer updates if a script ends earlier.

    Raises:
        TrialError: A trial failed.
    """

    def compared(design: Design) -> Comparison:
        say(f"comparing in fresh, interleaved processes, {design.updates} updates each")
        return compare(
            settings["A"], EMPTY, EMPTY, design, candidate_setting=settings["B"],
            on_pair=lambda so_far: say(pair_words(so_far, design.looks[-1])),
        )  # fmt: skip

    ends = ScriptProcesses(setting=settings["A"], seed=design.seed, draws=False)
    try:
        return compared(design)
    except TrialError as error:
        if not ends.shortens_turns(error) or ends.most_steps is None:
            raise
        say(f"the script ends after {ends.most_steps} steps")
        return compared(replace(design, updates=max(min(_counted(ends.most_steps), design.updates - 1), 1)))


def _counted(steps: int) -> int:
    """Return how many updates of a script with this number of steps are counted."""
    return steps - WARMUP_UPDATES - 2


def pair_words(so_far: Comparison, most: int) -> str:
    """Return the newest pair of a comparison in words."""
    base, candidate = (next(s for s in reversed(so_far.samples) if s.arm == arm) for arm in "AB")
    change = 100.0 * (candidate.seconds_per_item / base.seconds_per_item - 1.0)
    disturbed = " (disturbed by other processes)" if base.spoilt or candidate.spoilt else ""
    return f"pair {len(so_far.metrics['A'])} of at most {most}: {change:+.1f} % time{disturbed}"


def check_paired(
    repository: Repository, subject: Subject, versions: tuple[Version, Version], options: Options,
    say: Callable[[str], None] = lambda _: None,
) -> CheckResult:  # fmt: skip
    """Compare two versions, and confirm a slower verdict in fresh worktrees. Raises like `run_session`."""
    started = monotonic()
    first = run_session(repository, subject, versions, options, deadline=started + FIRST_FRAC * options.budget_s, say=say)
    sessions = [first]
    if first.comparison.verdict is Verdict.SLOWER and first.comparison.interval is not None:
        say(f"slower in the first session: {change_words(first.comparison.interval)}")
        sessions.append(
            run_session(repository, subject, versions, options, deadline=started + options.budget_s, say=say, number=1)
        )
    comparisons = tuple(session.comparison for session in sessions)
    verdict, why = conclude(comparisons)
    base, candidate = versions
    last = sessions[-1].arms
    interval = joined(comparisons)
    changed = repository.changed_dependencies(base, candidate)
    warnings = [f"{', '.join(changed)} differ, but both versions ran with the packages installed here"] if changed else []
    return CheckResult(
        target=subject.name,
        method=f"{SIDE_BY_SIDE}, {interval.pairs if interval else 0} pairs",
        verdict=verdict,
        why=why,
        interval=interval,
        floor_frac=comparisons[-1].floor.frac,
        base=base,
        candidate=candidate,
        sessions=comparisons,
        phases=_phases(sessions, verdict),
        memory=memory_change(*(_peaks(comparisons, arm) for arm in "AB")),
        quality=quality_change(comparisons, last["A"].quality if options.quality else None, of_script=bool(subject.command)),
        equal_losses=_equal_losses(comparisons),
        environment=tuple(environment_differences(last["A"].described, last["B"].described)),
        warnings=tuple(warnings),
        machine=machine_of(last["B"].facts.machine),
        measured=measured_of(
            [time for item in comparisons for time in item.times("B")], _peaks(comparisons, "B"), last["B"]
        ),
        seconds=monotonic() - started,
    )


def machine_of(machine: Machine) -> dict[str, Any]:
    """Return a machine as results and histories keep it."""
    return {
        "fingerprint": machine.fingerprint(),
        "summary": machine.summary(),
        "cpu": machine.cpu_model.value,
        "accelerators": list(machine.accelerators.value),
    }


def measured_of(times: Sequence[float], peaks: Sequence[float], prepared: Prepared) -> dict[str, Any]:
    """Return what was measured of the candidate as a history keeps it."""
    return {
        "seconds_per_item": list(times),
        "peak_bytes": list(peaks),
        "phases_ms": prepared.phases_ms,
        "environment": {name: prepared.described[name] for name in ("python", "threads", "packages")},
    }


def _peaks(comparisons: tuple[Comparison, ...], arm: str) -> list[float]:
    samples = (sample for comparison in comparisons for sample in comparison.samples)
    return [float(sample.peak_bytes or 0) for sample in samples if sample.arm == arm]


def _phases(sessions: list[Session], verdict: Verdict) -> PhaseChange:
    """Return the mean phases of all sessions."""

    def mean(arm: str) -> dict[str, float]:
        profiles = [session.arms[arm].phases_ms for session in sessions]
        return {name: statistics.fmean(item.get(name, 0.0) for item in profiles) for name in profiles[0]}

    return changed_phase(mean("A"), mean("B"), verdict)


def _equal_losses(comparisons: tuple[Comparison, ...]) -> bool | None:
    losses = [comparison.losses for comparison in comparisons if comparison.losses["A"] and comparison.losses["B"]]
    return all(item["A"] == item["B"] for item in losses) if losses else None
