"""Decide how to measure an event around the updates, what an epoch consists of, and what must stay equal. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasten.core.errors import TrialError
from hasten.core.facts import Facts
from hasten.core.optimization import Optimization
from hasten.tune.trials.event_turns import Event

TURN_S = 4.0
"""Approximate maximum length in seconds of a turn's part with the event."""
LEAST_TURN_S = 0.6
"""Approximate minimum length in seconds; several short events are measured together."""
MAX_UPDATES = 200
"""Maximum number of updates in a turn."""
WRITE_MARGIN = 1.5
"""Length of the updates during a checkpoint, as a multiple of the plain checkpoint, which should be done by then."""
ROUNDING_FRAC = 0.01
"""Allowed change of a metric, as a share of its change over a few updates."""
ROUNDING_EPS = 64 * 2.0**-23
"""Allowed change as a share of the metric itself: float32 sums in another order."""
EVENTS = ("validation", "checkpoint")
"""Phases of a script that come now and then."""


@dataclass(frozen=True, kw_only=True)
class EventDesign:
    """How an event is measured, and what an epoch consists of.

    Attributes:
        event: The event.
        updates: Updates during the events of a turn, and the same number without them.
        repeats: Events per turn.
        max_batches: Held-out batches per pass; None for all.
        scale: Factor from the measured pass to a whole one.
        per_epoch: Number of events in an epoch.
        epoch_updates: Updates in an epoch.
        epoch_items: Samples in an epoch.
        update_s: Seconds of an update if no quiet part measures it.
        rest_s: Seconds of the other events in an epoch.
    """

    event: Event
    updates: int = 0
    repeats: int = 1
    max_batches: int | None = None
    scale: float = 1.0
    per_epoch: float = 1.0
    epoch_updates: int
    epoch_items: int
    update_s: float
    rest_s: float

    def asked(self) -> dict[str, Any]:
        """Return the arguments of a turn."""
        return {
            "event": self.event,
            "updates": self.updates,
            "repeats": self.repeats,
            "max_batches": self.max_batches,
        }

    def lost_s(self, answer: Mapping[str, Any]) -> float:
        """Return the seconds that one event cost in a turn."""
        return float(answer["seconds"] - answer["quiet_seconds"]) / self.repeats * self.scale

    def epoch_s(self, answer: Mapping[str, Any], update_s: float) -> float:
        """Return the seconds of an epoch if its events cost as much as in this turn."""
        steps_s = self.epoch_updates * update_s
        return max(steps_s + self.rest_s + self.per_epoch * self.lost_s(answer), 1e-9)


def design_event(optimization: Optimization, facts: Facts) -> EventDesign:
    """Return how to measure the event that `optimization` changes.

    Raises:
        TrialError: The card names no event, or the length of an epoch is unknown.
    """
    event, job = optimization.card.event, facts.job
    epoch_updates = job.updates_per_epoch or job.planned_updates
    if not event or epoch_updates is None or facts.epoch_s <= 0:
        message = f"{optimization.card.name} cannot be measured by an event, or the length of an epoch is unknown"
        raise TrialError(message, kind="raised")
    update_s = facts.step_ms / 1e3
    own_s = {
        "report": facts.report_s * facts.reports_per_epoch,
        "checkpoint": facts.checkpoint_s,
        "validation": facts.validation_s,
    }[event]
    updates, repeats, max_batches, scale = 0, 1, None, 1.0
    if event == "report":
        updates = repeats = min(int(LEAST_TURN_S / update_s) + 2, MAX_UPDATES)
    elif event == "checkpoint":
        during = min(int(min(WRITE_MARGIN * facts.checkpoint_s, TURN_S) / update_s) + 1, MAX_UPDATES, epoch_updates)
        repeats = _repeats(facts.checkpoint_s + during * update_s, MAX_UPDATES // during)
        updates = during * repeats
    else:
        repeats = _repeats(facts.validation_s, MAX_UPDATES)
        if facts.validation_s > TURN_S:
            max_batches = max(int(facts.validation_batches * TURN_S / facts.validation_s), 1)
            scale = facts.validation_batches / max_batches
    return EventDesign(
        event=event,
        updates=updates,
        repeats=repeats,
        max_batches=max_batches,
        scale=scale,
        per_epoch=facts.reports_per_epoch if event == "report" else 1.0,
        epoch_updates=epoch_updates,
        epoch_items=job.num_samples or epoch_updates * job.batch_size * job.accumulation,
        update_s=update_s,
        rest_s=max(facts.epoch_s - epoch_updates * update_s - own_s, 0.0),
    )


def _repeats(event_s: float, most: int) -> int:
    """Return how often to repeat an event within a turn so that the turn is not too short."""
    return min(max(int(LEAST_TURN_S / max(event_s, 1e-6)), 1), max(most, 1))


def kept_event_facts(old: Facts, step_ms: float, *, event: str = "", lost_s: float = 0.0) -> dict[str, Any]:
    """Return the event-related facts after a quick profile, which does not measure them.

    Args:
        old: The previous facts.
        step_ms: Milliseconds of an update now.
        event: The event of the technique that was just kept, if it has one.
        lost_s: Seconds that this event costs from now on: `EventScreening.lost_s["B"]`.
    """
    names = (
        "report_s", "reports_per_epoch", "checkpoint_s", "checkpoint_bytes", "validation_s", "validation_batches",
    )  # fmt: skip
    known: dict[str, Any] = {name: getattr(old, name) for name in names}
    if event:
        known[f"{event}_s"] = max(lost_s, 0.0)
    updates = old.job.updates_per_epoch or old.job.planned_updates
    if old.epoch_s > 0 and updates is not None:
        events_s = known["report_s"] * known["reports_per_epoch"] + known["checkpoint_s"] + known["validation_s"]
        known["epoch_s"] = updates * step_ms / 1e3 + events_s
    return known


def carried_events(old: Facts, measured: Mapping[str, Any]) -> dict[str, float]:
    """Return the event-related facts of a script after a quick profile, which may be too short to see an event.

    Events that it saw count as it saw them. The others keep their seconds per step.

    Args:
        old: The previous facts.
        measured: The facts of the quick profile, by name.
    """
    seen_s = {name: measured[f"{name}_s"] for name in EVENTS}
    steps = measured["step_ms"] and 1e3 * (measured["epoch_s"] - sum(seen_s.values())) / measured["step_ms"]
    kept = {f"{name}_s": getattr(old, f"{name}_s") for name in EVENTS}
    before = old.step_ms and 1e3 * (old.epoch_s - sum(kept.values())) / old.step_ms
    if min(steps, before) <= 0:
        return {}
    missed_s = {f"{name}_s": kept[f"{name}_s"] * steps / before for name in EVENTS if not seen_s[name]}
    texts_s = measured["tensor_texts_s"] or old.tensor_texts_s * steps / before
    return {**missed_s, "epoch_s": measured["epoch_s"] + sum(missed_s.values()), "tensor_texts_s": texts_s}


def judge_metrics(
    base: Mapping[str, float], again: Mapping[str, float], candidate: Mapping[str, float], later: Mapping[str, float]
) -> tuple[bool, str]:
    """Return whether held-out metrics of the same weights differ by rounding only, and an explanation.

    A metric that differs between two passes of the base depends on more than the weights, such as a duration or a random
    draw. It is ignored; the loss never is.

    Args:
        base: Measured without the technique.
        again: The same measurement repeated.
        candidate: Measured with the technique.
        later: Measured without it a few updates later, which shows the effect of changed weights.
    """
    restless = [name for name, value in base.items() if name != "loss" and not _repeats_itself(value, again.get(name))]
    for name, value in base.items():
        if name not in candidate:
            return False, f"the metric {name!r} is missing"
        if name in restless:
            continue
        allowed = max(ROUNDING_FRAC * abs(later[name] - value), ROUNDING_EPS * abs(value))
        moved = abs(candidate[name] - value)
        if not moved <= allowed:
            return False, f"the metric {name!r} changes by {moved:.3g}, and rounding explains at most {allowed:.3g}"
    message = f"{len(base) - len(restless)} held-out metrics equal up to rounding"
    if restless:
        message += f" (ignored because two passes over the same weights differ: {', '.join(restless)})"
    return True, message


def _repeats_itself(value: float, again: float | None) -> bool:
    """Return whether two passes over the same weights agree; NaN in both counts as agreement."""
    if again is None or value == again or (math.isnan(value) and math.isnan(again)):
        return True
    return abs(again - value) <= ROUNDING_EPS * abs(value)
