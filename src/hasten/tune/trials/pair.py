"""Run the arms of a comparison in fresh processes: one after the other, or both alive and taking turns.

Turns are for machines whose speed drifts from second to second, as on shared hosts: processes that run one after the other
would meet different conditions. The unit is still the pair of processes; turns only make its ratio more precise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hasten.core.card import Trait
from hasten.core.facts import Facts
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, MIN_FLOOR_FRAC
from hasten.tune.trials.samples import Sample, make_sample
from hasten.tune.trials.trial import Trial, TrialSetting
from hasten.tune.trials.turns import awake, interleave, join_turns, named

COMPILE_WARMUP_UPDATES = 8
"""Number of warm-up updates if the model is compiled."""
WARMUP_UPDATES = 3
"""Number of warm-up updates otherwise."""
TURNS = 100
"""Maximum number of turns of each arm, if both fit into memory together. Turns are many and short because shared hosts
change their speed within hundredths of a second, and anything slower than a turn affects both arms equally."""
MEMORY_FOR_TWO = 0.4
"""Two processes are alive side by side only if one uses at most this share of the memory."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """How a comparison is run; fixed before the first measurement.

    Attributes:
        updates: Counted updates in each process; the equivalent number of samples if a plan regroups the samples. Fewer from
            the second pair on if the first took too long.
        uneven: Whether updates differ in length by nature (samples of different length).
        seed: The seed of the first pair; later pairs increment it. It also determines the order of the first pair.
        quality: Measure the held-out data at the end of each process, and continue to the next look while it is undecided.
        max_batches: Held-out batches per measurement; None for all.
        looks: Numbers of pairs at which the verdict may be read.
        deadline: Monotonic time after which no further pair is started; None for no limit.
        min_floor_frac: The smallest difference that counts.
        turns: 1 runs the two processes of a pair one after the other. More keeps both alive and alternates between them this
            often, the idle one frozen, which cancels drift within seconds but keeps both in memory.
        warmup: Uncounted updates of a script at its start, the same in both arms, because it cannot go back to its start.
    """

    updates: int
    uneven: bool = False
    seed: int = 0
    quality: Quality | None = None
    max_batches: int | None = None
    looks: Sequence[int] = LOOKS
    deadline: float | None = None
    min_floor_frac: float = MIN_FLOOR_FRAC
    turns: int = 1
    warmup: int = WARMUP_UPDATES


@dataclass(frozen=True, kw_only=True)
class ArmOutcome:
    """The result of one fresh process: its sample, losses, held-out metrics, and seconds of set-up and of cache filling."""

    sample: Sample
    losses: list[float]
    metrics: dict[str, float]
    setup_s: float
    filling_s: float = 0.0


def warmup_of(*plans: Plan) -> int:
    """Return the number of updates after which both arms of a script run at full speed."""
    compiled = any(plan.has(Trait.COMPILES) for plan in plans)
    return COMPILE_WARMUP_UPDATES if compiled else WARMUP_UPDATES


def run_arm(setting: TrialSetting, plan: Plan, arm: str, pair: int, design: Design) -> ArmOutcome:
    """Run one fresh process to its end."""
    with named(plan.names, setting.label), Trial(setting, plan, seed=design.seed + pair) as trial:
        ready = _get_ready(trial, design)
        answer = trial.call("run", updates=plan.updates_for(design.updates))
        return _outcome(trial, make_sample(arm, pair, answer, uneven=design.uneven), answer["losses"], ready, design)


def run_in_turns(
    plans: Mapping[str, tuple[TrialSetting, Plan]], arms: str, pair: int, design: Design
) -> dict[str, ArmOutcome]:
    """Run both processes of a pair side by side, one frozen while the other counts; `arms` is in starting order."""
    with ExitStack() as stack:
        trials: dict[str, Trial] = {}
        for arm in arms:
            # Jobs load side by side, because nothing is counted yet. Scripts do their first step meanwhile, in which the
            # threads of two processes would wait for each other.
            side_by_side = not plans[arm][0].command
            with named(plans[arm][1].names, plans[arm][0].label):
                trials[arm] = stack.enter_context(Trial(*plans[arm], seed=design.seed + pair, wait=not side_by_side))
            if not side_by_side:
                trials[arm].freeze()
        for arm in arms:
            if not plans[arm][0].command:
                with named(trials[arm].plan.names, trials[arm].setting.label):
                    trials[arm].wait_until_loaded()
        for trial in trials.values():
            trial.freeze()
        ready = {arm: awake(trials[arm], lambda trial: _get_ready(trial, design)) for arm in arms}
        turns, account = interleave(trials, arms, design.updates, turns=design.turns)
        outcomes = {}
        for arm in arms:
            sample = join_turns(arm, pair, turns[arm], account, uneven=design.uneven)
            losses = [loss for answer in turns[arm] for loss in answer["losses"]]
            outcomes[arm] = awake(
                trials[arm], partial(_outcome, sample=sample, losses=losses, ready=ready[arm], design=design)
            )
            trials[arm].end()
        return outcomes


def turns_that_fit(facts: Facts) -> int:
    """Return how many turns a pair may take.

    Only 1 if two processes would need too much memory, or if data that an update waits for would arrive while its process
    is frozen.
    """
    fits = facts.job.device == "cpu" and facts.peak_memory_bytes < MEMORY_FOR_TWO * facts.memory_limit_bytes
    return TURNS if fits and not facts.waits_for_data else 1


def warmup(trial: Trial, updates: int, *, most: int | None = None) -> dict[str, Any]:
    """Return the arguments of `warm`: uncounted updates, until a process runs its plan at full speed.

    Args:
        trial: The process. A script gets a number of updates only, because it cannot go back to its start.
        updates: Minimum number of updates; more if the model is compiled.
        most: Maximum number of updates.
    """
    count = max(updates, COMPILE_WARMUP_UPDATES if trial.plan.has(Trait.COMPILES) else 0)
    arguments: dict[str, Any] = {"updates": count if most is None else min(count, most)}
    settle_s = max((item.card.settle_s for item in trial.plan.optimizations), default=0.0)
    return {**arguments, "seconds": settle_s} if settle_s and not trial.setting.command else arguments


def _get_ready(trial: Trial, design: Design) -> tuple[dict[str, Any], float]:
    """Warm up, go back to the start and fill caches. Returns the answer of the warm-up and the seconds of filling."""
    updates = trial.plan.updates_for(design.updates)
    warm = trial.call("warm", **warmup(trial, design.warmup if trial.setting.command else WARMUP_UPDATES, most=updates))
    trial.call("rewind")
    primed_s = trial.call("prime", updates=updates)["seconds"]
    trial.call("memory", reset=True)
    return warm, primed_s


def _outcome(
    trial: Trial, sample: Sample, losses: list[float], ready: tuple[dict[str, Any], float], design: Design
) -> ArmOutcome:
    peak = trial.call("memory", reset=False)["peak_bytes"]
    metrics = trial.call("validate", max_batches=design.max_batches)["metrics"] if design.quality else {}
    warm, primed_s = ready
    setup_s = primed_s + max(warm["seconds"] - 2 * warm["updates"] * sample.seconds / sample.updates, 0.0)
    return ArmOutcome(
        sample=replace(sample, peak_bytes=peak), losses=losses, metrics=metrics, setup_s=setup_s, filling_s=primed_s
    )
