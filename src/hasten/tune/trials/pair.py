"""Run the arms of a comparison in fresh processes: one after the other, or both alive and taking turns.

Turns are for machines whose speed drifts from second to second, as shared hosts do: processes that run one after the other
then meet different machines. The unit stays the pair of processes; turns only sharpen its ratio.
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
WARMUP_UPDATES = 3
TURNS = 100
"""Turns of each arm at most, where both fit into memory together. Many and short: shared hosts change their speed within
hundredths of a second, and what changes slower than a turn falls on both arms alike."""
MEMORY_FOR_TWO = 0.4
"""Two processes live side by side only if one takes no more than this share of the memory."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """How a comparison is run; fixed before the first measurement.

    Attributes:
        updates: Updates counted in each process; as many samples' worth of them where a plan regroups the samples.
            Fewer from the second pair on, where the first took longer than the time holds.
        uneven: Updates differ by nature (samples of different length).
        seed: The first pair's seed; the next pairs count on from it. Also draws the order of the first pair.
        quality: Measure the held-out data at the end of each process, and go on to the next look while it is undecided.
        max_batches: Of held-out data; None for all.
        looks: Numbers of pairs at which the verdict may be read.
        deadline: Monotonic time after which no further pair is started; None for no bound.
        min_floor_frac: The smallest difference that counts.
        turns: 1 runs the two processes of a pair one after the other; more lets both live and take so many turns each,
            the idle one frozen, which cancels what drifts within seconds but holds both in memory.
        warmup: Updates of a script before any is counted, the same in both arms: it cannot go back to its start.
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
    """What one fresh process gave: its sample, losses, held-out metrics, seconds of set-up, and of filling caches in it."""

    sample: Sample
    losses: list[float]
    metrics: dict[str, float]
    setup_s: float
    filling_s: float = 0.0


def warmup_of(*plans: Plan) -> int:
    """Updates after which both arms of a script are as fast as they will be."""
    compiled = any(plan.has(Trait.COMPILES) for plan in plans)
    return COMPILE_WARMUP_UPDATES if compiled else WARMUP_UPDATES


def run_arm(setting: TrialSetting, plan: Plan, arm: str, pair: int, design: Design) -> ArmOutcome:
    """Run one fresh process to its end."""
    with named(plan.names), Trial(setting, plan, seed=design.seed + pair) as trial:
        ready = _get_ready(trial, design)
        answer = trial.call("run", updates=plan.updates_for(design.updates))
        return _outcome(trial, make_sample(arm, pair, answer, uneven=design.uneven), answer["losses"], ready, design)


def run_in_turns(
    plans: Mapping[str, tuple[TrialSetting, Plan]], arms: str, pair: int, design: Design
) -> dict[str, ArmOutcome]:
    """Run both processes of a pair side by side, one frozen while the other counts; `arms` says who begins."""
    with ExitStack() as stack:
        trials: dict[str, Trial] = {}
        for arm in arms:
            # Jobs load side by side: nothing is counted yet. Scripts do a first step meanwhile, at which the threads of two
            # would wait for one another.
            side_by_side = not plans[arm][0].command
            with named(plans[arm][1].names):
                trials[arm] = stack.enter_context(Trial(*plans[arm], seed=design.seed + pair, wait=not side_by_side))
            if not side_by_side:
                trials[arm].freeze()
        for arm in arms:
            if not plans[arm][0].command:
                with named(trials[arm].plan.names):
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
    """How many turns a pair may take.

    One after the other where two processes would be too much for the memory, and where what an update waits for would
    arrive while its process is frozen.
    """
    fits = facts.job.device == "cpu" and facts.peak_memory_bytes < MEMORY_FOR_TWO * facts.memory_limit_bytes
    return TURNS if fits and not facts.waits_for_data else 1


def warmup(trial: Trial, updates: int, *, most: int | None = None) -> dict[str, Any]:
    """What to ask of `warm`: updates that nobody counts, until the plan of a process is as fast as it will be.

    Args:
        trial: The process. A script's knows updates alone: it cannot go back to its start.
        updates: So many at least, more where the model is compiled.
        most: But no more than this.
    """
    count = max(updates, COMPILE_WARMUP_UPDATES if trial.plan.has(Trait.COMPILES) else 0)
    asked: dict[str, Any] = {"updates": count if most is None else min(count, most)}
    settle_s = max((item.card.settle_s for item in trial.plan.optimizations), default=0.0)
    return {**asked, "seconds": settle_s} if settle_s and not trial.setting.command else asked


def _get_ready(trial: Trial, design: Design) -> tuple[dict[str, Any], float]:
    """Warm up, go back to the start and fill caches; gives the warm-up's answer and the seconds of filling."""
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
