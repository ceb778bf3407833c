"""Let two live processes take short turns, the idle one frozen, so that drift affects both arms equally."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hasten.core.errors import TrialError
from hasten.tune.trials.machine_load import Account, Meter, allowed_cores
from hasten.tune.trials.samples import Sample, make_sample
from hasten.tune.trials.trial import Trial

T = TypeVar("T")
MIN_TURN_S, MIN_PARALLEL_TURN_S = 0.01, 0.1
"""Minimum length of a turn in seconds: caches start cold, and the threads of parallel operators must find their cores."""
PARALLEL = 1.2
"""CPU seconds per second above which a process counts as parallel."""
MIN_TURNS, MIN_PARALLEL_TURNS = 10, 4
"""Minimum number of turns of a process, and of a parallel one."""
KNOWN_TURNS = 3
"""Number of turns after which their length is fixed."""


def interleave(
    trials: Mapping[str, Trial], arms: str, updates: int, *, turns: int
) -> tuple[dict[str, list[dict[str, Any]]], Account]:
    """Let frozen processes do `updates` updates each, a few at a time, and leave them frozen.

    Args:
        trials: The processes by arm.
        arms: The order of the first turn. Turns go AB BA BA AB, so that each arm follows the other, and itself, equally
            often on each core.
        updates: Updates of each arm. If a plan regroups the samples: updates of the job, and both arms see as many samples.
        turns: Maximum number of turns of each arm.

    Returns:
        The answers to all turns by arm, and the machine load meanwhile, measured here because a single turn may be shorter
        than the kernel's clock ticks.
    """
    answers: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    cores = sorted(allowed_cores())
    meter = Meter()
    factors = {arm: trial.plan.samples_factor for arm, trial in trials.items()}
    done, turn, size = 0, 0, max(updates // turns, math.ceil(max(factors.values())))  # a turn contains an update of each arm
    while done < updates:
        now = min(size, updates - done)
        # Both arms use the same core. A parallel process stays where it is, or it would displace its own threads.
        core = None if _cores_used(answers) > PARALLEL else cores[turn // 2 % len(cores)]
        for arm in reversed(arms) if turn % 4 in (1, 2) else arms:
            own = max(round((done + now) / factors[arm]) - round(done / factors[arm]), 0 if done else 1)
            if own:  # a short last turn may contain no update of an arm with larger updates
                answers[arm].append(awake(trials[arm], partial(Trial.call, operation="run", updates=own, core=core)))
        if done < KNOWN_TURNS * size:
            several = _cores_used(answers) > PARALLEL
            least_s, least = (MIN_PARALLEL_TURN_S, MIN_PARALLEL_TURNS) if several else (MIN_TURN_S, MIN_TURNS)
            quickest = min(sum(taken[-1]["times"]) for taken in answers.values()) / now
            most = max(updates // min(least, turns), 1)
            size = max(size, min(math.ceil(least_s / max(quickest, 1e-9)), most))
        done, turn = done + now, turn + 1
    return answers, meter.read()


def _cores_used(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Return how many cores the arms kept busy so far; 0 before the first turn."""
    turns = [answer for taken in answers.values() for answer in taken]
    seconds = sum(sum(answer["times"]) for answer in turns)
    return sum(answer["cpu_seconds"] for answer in turns) / seconds if seconds else 0.0


def join_turns(arm: str, pair: int, turns: Sequence[Mapping[str, Any]], account: Account, *, uneven: bool) -> Sample:
    """Join the turns of an arm into one sample: the geometric mean of turns, which averages their ratios; totals if uneven.

    Args:
        arm: The arm.
        pair: Number of its pair.
        turns: The answers to its turns.
        account: The machine load during the turns of both arms, as measured by the parent.
        uneven: Whether updates differ in length by nature.
    """
    parts = [make_sample(arm, pair, answer, uneven=True) for answer in turns]
    seconds, items = sum(part.seconds for part in parts), sum(part.items for part in parts)
    per_item = seconds / max(items, 1)
    if not uneven:
        per_item = math.exp(sum(math.log(part.seconds_per_item) for part in parts) / len(parts))
    return replace(
        parts[0],
        seconds_per_item=per_item,
        seconds=seconds,
        items=items,
        updates=sum(part.updates for part in parts),
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        foreign_cpu_frac=account.foreign_cpu_frac,
        major_faults=sum(part.major_faults for part in parts),
        minor_faults=sum(part.minor_faults for part in parts),
        spoilt=account.spoilt,
    )


def awake(trial: Trial, act: Callable[[Trial], T]) -> T:
    """Thaw a process while `act` runs. Errors name the plan."""
    trial.thaw()
    try:
        with named(trial.plan.names, trial.setting.label):
            return act(trial)
    finally:
        trial.freeze()


@contextmanager
def named(plan: Sequence[str], label: str = "") -> Iterator[None]:
    """Add the plan, or a label instead of it, to the message of a TrialError."""
    try:
        yield
    except TrialError as error:
        where = label or f"Under the plan [{', '.join(plan) or 'empty'}]"
        raise TrialError(f"{where}: {error}", kind=error.kind, details=error.details) from error
