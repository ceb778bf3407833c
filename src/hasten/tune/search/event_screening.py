"""Screen a technique that acts around the updates: on reports, checkpoints or validation passes.

As in `screening.py`, two resident processes take turns, the idle one frozen, and disturbed turns are repeated. The event is
timed by what it costs the training (`event_turns.py`). What is compared is the resulting time of a whole epoch:

    epoch = updates x update + other work around the updates + events x loss

The time of an update is the same for both arms (the mean of their quiet parts, pair by pair). The loss is measured per arm:
its part with the event minus its own quiet part. A difference between the two processes that has nothing to do with the
event therefore cancels out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hasten.core.card import Numerics
from hasten.core.facts import Facts
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.numerics import GateVerdict, judge_exact
from hasten.tune.search.event_design import EventDesign, design_event, judge_metrics
from hasten.tune.search.resident_process import Resident
from hasten.tune.search.screening import FUTILE_TURNS, MAX_RETAKES, MORE_TURNS, Screen, Screening, read_turns
from hasten.tune.trials.pair import warmup
from hasten.tune.trials.samples import Sample

GATE_UPDATES = 4
"""Number of updates between the two events whose losses the numerics gate compares."""


@dataclass(kw_only=True)
class EventScreening(Screening):
    """The result of screening an event. `comparison` is of whole epochs: its ratio is the gain of an epoch.

    Attributes:
        design: How it was measured.
        lost_s: Median seconds that one event costs the training, by arm.
        stall_s: Median seconds between the start of the event and the continuation of the training, by arm.
        epoch_s: Median seconds of an epoch, by arm.
    """

    design: EventDesign
    lost_s: dict[str, float] = field(default_factory=dict)
    stall_s: dict[str, float] = field(default_factory=dict)
    epoch_s: dict[str, float] = field(default_factory=dict)


def screen_event(
    screen: Screen, optimization: Optimization, plan: Plan, facts: Facts, *, most_turns: int = MORE_TURNS
) -> EventScreening:
    """Screen `plan`, the base plan of `screen` with `optimization`, by the event that its card names.

    Afterwards the challenger can be promoted (`screen.promote()`), as after `screen.screen`. The comparison contains the
    ratio of an epoch's time, judged with the noise floor of `screen`. The gate compares what was written or measured with
    what should have been, and the losses of the updates meanwhile bit by bit. `compare` with fresh processes cannot confirm
    such a gain, because it only times updates.

    Args:
        screen: Keeps the base process.
        optimization: The added technique; its `card.event` is not empty.
        plan: The plan of the challenger.
        facts: Facts from a full profile (not a quick one), which describe an epoch.
        most_turns: Maximum number of turns of each process.

    Raises:
        TrialError: A process died, hung or failed, or the length of an epoch is unknown.
    """
    design = design_event(optimization, facts)
    screening = EventScreening(comparison=Comparison(kind="screening"), design=design)
    challenger, folder = screen.challenge(plan), str(Path(screen.setting.folder).resolve())
    challenger.trial.call("warm", **warmup(challenger.trial, 2))
    first_s = challenger.trial.call("event", folder=folder, **design.asked())["seconds"]
    screening.evidence = challenger.trial.call("trace")["evidence"].get(optimization.card.name, [])
    if not screening.fired:
        return screening
    challenger.trial.freeze()
    arms = {"A": screen.base, "B": challenger}
    try:
        ready = {arm: _get_ready(arms[arm], design, folder, most_turns) for arm in "BA"}
        screening.setup_s = max(first_s - ready["B"][-1]["seconds"], 0.0)
        _take_turns(screening, arms, folder, most_turns, screen.floor_frac)
        for arm, resident in arms.items():
            screening.peak_bytes[arm] = int(_awake(resident, "memory", reset=False)["peak_bytes"])
    finally:
        for resident in arms.values():
            if resident.trial.alive:
                _awake(resident, "end_events")
    screening.gate = _judge(optimization.numerics, ready)
    return screening


def _get_ready(resident: Resident, design: EventDesign, folder: str, most_turns: int) -> list[dict[str, Any]]:
    """Let all first-time costs happen, check what is written, and go back to the start. Returns the answers of two turns."""
    trial = resident.trial
    trial.thaw()
    trial.call("rewind")
    first = trial.call("event", folder=folder, check=True, **design.asked())
    losses = trial.call("run", updates=GATE_UPDATES)["losses"]
    second = trial.call("event", folder=folder, check=True, **design.asked())
    second["losses"] = first["losses"] + losses + second["losses"]
    trial.call("rewind")
    trial.call("prime", updates=2 * design.updates * most_turns)
    trial.call("memory", reset=True)
    trial.freeze()
    return [first, second]


def _take_turns(
    screening: EventScreening, arms: Mapping[str, Resident], folder: str, most_turns: int, floor_frac: float
) -> None:
    design, taken = screening.design, dict[str, list[dict[str, Any]]](A=[], B=[])
    for turn in range(most_turns + MAX_RETAKES):
        answers = {
            arm: _awake(arms[arm], "event", folder=folder, quiet_first=turn % 2 == 0, **design.asked())
            for arm in ("AB", "BA")[turn % 2]
        }
        quiet = [answer["quiet_seconds"] / design.updates for answer in answers.values() if design.updates]
        update_s = sum(quiet) / len(quiet) if quiet else design.update_s
        spoilt = any(answer["spoilt"] for answer in answers.values())
        for arm, answer in answers.items():
            epoch_s = design.epoch_s(answer, update_s)
            screening.comparison.samples.append(_sample(arm, turn, answer, epoch_s / design.epoch_items, design))
            if not spoilt:
                taken[arm].append({**answer, "epoch_s": epoch_s, "lost_s": design.lost_s(answer)})
        screening.comparison.retaken += spoilt
        clean = turn + 1 - screening.comparison.retaken
        decided = read_turns(screening.comparison, clean, floor_frac)
        if clean == most_turns or (clean >= FUTILE_TURNS and decided):
            break
    interval = screening.comparison.interval
    if interval is not None:
        screening.comparison.why = f"an epoch's time, by its {design.event}, screened in turns, noise floor {floor_frac:.1%}"
        for arm, answers_of in taken.items():
            screening.lost_s[arm] = median(answer["lost_s"] for answer in answers_of)
            screening.stall_s[arm] = median(answer["stall_s"] for answer in answers_of) / design.repeats * design.scale
            screening.epoch_s[arm] = median(answer["epoch_s"] for answer in answers_of)


def _sample(arm: str, turn: int, answer: Mapping[str, Any], seconds_per_item: float, design: EventDesign) -> Sample:
    return Sample(
        arm=arm,
        pair=turn,
        seconds_per_item=seconds_per_item,
        seconds=answer["seconds"],
        items=design.epoch_items * design.updates // design.epoch_updates,
        updates=design.updates,
        cpu_seconds=answer["cpu_seconds"],
        foreign_cpu_frac=answer["foreign_cpu_frac"],
        major_faults=answer["major_faults"],
        minor_faults=answer["minor_faults"],
        spoilt=answer["spoilt"],
    )


def _judge(numerics: Numerics, ready: Mapping[str, list[dict[str, Any]]]) -> GateVerdict:
    """Check that the training is unchanged, that the written data is correct, and that the metrics are the same."""
    training = judge_exact(ready["A"][-1]["losses"], ready["B"][-1]["losses"])
    why, passed = training.why, training.verdict == "passed"
    if passed and not all(answer["faithful"] for answer in ready["B"]):
        passed, why = False, "the written data differs from the data that should have been written"
    elif passed:
        why += ", and the written data is correct"
    (base, later), candidate = ready["A"], ready["B"][0]
    if passed and base["metrics"]:
        passed, message = judge_metrics(base["metrics"], base["metrics_before"], candidate["metrics"], later["metrics"])
        why = f"{training.why}, and {message}" if passed else message
    return GateVerdict(numerics=numerics, verdict="passed" if passed else "failed", why=why)


def _awake(resident: Resident, operation: str, **arguments: Any) -> dict[str, Any]:
    """Thaw a frozen process for one command."""
    resident.trial.thaw()
    try:
        return resident.trial.call(operation, **arguments)
    finally:
        resident.trial.freeze()
