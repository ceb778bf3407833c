"""How an event around the updates is measured, what an epoch is made of, and what is held equal: pure functions."""

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
"""A turn's part with the event takes no longer than about this."""
LEAST_TURN_S = 0.6
"""Nor much less: several events are taken together where one is short."""
MAX_UPDATES = 200
WRITE_MARGIN = 1.5
"""Updates beside a checkpoint, in times of what the plain one takes: it should be through when they are."""
ROUNDING_FRAC = 0.01
"""A metric may move by this share of what a few updates move it."""
ROUNDING_EPS = 64 * 2.0**-23
"""Or by this share of itself: sums in float32 over another order."""


@dataclass(frozen=True, kw_only=True)
class EventDesign:
    """How an event is measured, and what an epoch is made of.

    Attributes:
        event: Which one.
        updates: Updates beside the events of a turn, and as many without them.
        repeats: Events in a turn.
        max_batches: Held-out batches of a pass; None takes all.
        scale: What the measured pass must be multiplied by to be a whole one.
        per_epoch: How often the event comes in an epoch.
        epoch_updates: Updates of an epoch.
        epoch_items: Samples of an epoch.
        update_s: Seconds of an update, where no quiet part measures it.
        rest_s: Seconds of an epoch for the other events.
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
        """What a turn is asked for."""
        return {
            "event": self.event,
            "updates": self.updates,
            "repeats": self.repeats,
            "max_batches": self.max_batches,
        }

    def lost_s(self, answer: Mapping[str, Any]) -> float:
        """Seconds that one event cost in a turn."""
        return float(answer["seconds"] - answer["quiet_seconds"]) / self.repeats * self.scale

    def epoch_s(self, answer: Mapping[str, Any], update_s: float) -> float:
        """Seconds of an epoch whose events cost what this one did."""
        steps_s = self.epoch_updates * update_s
        return max(steps_s + self.rest_s + self.per_epoch * self.lost_s(answer), 1e-9)


def design_event(optimization: Optimization, facts: Facts) -> EventDesign:
    """How to measure the event that `optimization` changes.

    Raises:
        TrialError: The card names no event, or the length of an epoch is not known.
    """
    event, job = optimization.card.event, facts.job
    epoch_updates = job.updates_per_epoch or job.planned_updates
    if not event or epoch_updates is None or facts.epoch_s <= 0:
        words = f"{optimization.card.name} has no event to be measured by, or the length of an epoch is not known"
        raise TrialError(words, kind="raised")
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
        beside = min(int(min(WRITE_MARGIN * facts.checkpoint_s, TURN_S) / update_s) + 1, MAX_UPDATES, epoch_updates)
        repeats = _repeats(facts.checkpoint_s + beside * update_s, MAX_UPDATES // beside)
        updates = beside * repeats
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
    """How often an event is taken in a turn so that the turn is not too short."""
    return min(max(int(LEAST_TURN_S / max(event_s, 1e-6)), 1), max(most, 1))


def kept_event_facts(old: Facts, step_ms: float, *, event: str = "", lost_s: float = 0.0) -> dict[str, Any]:
    """The fields on events of the facts after a quick profile, which does not measure them.

    Args:
        old: The facts before.
        step_ms: Of an update now.
        event: The event of the technique that was just kept, where it has one.
        lost_s: What that event costs since then: `EventScreening.lost_s["B"]`.
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


def judge_metrics(
    base: Mapping[str, float], again: Mapping[str, float], candidate: Mapping[str, float], later: Mapping[str, float]
) -> tuple[bool, str]:
    """Whether held-out metrics of the same weights differ by rounding alone.

    A metric that two passes of the base do not agree on says something else than how good the weights are: how long
    something took, what was drawn at random. It is left out; the loss never is.

    Args:
        base: Measured as before.
        again: The same once more.
        candidate: Measured in the new way.
        later: Measured as before, a few updates on: what a difference in the weights does.
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
            return False, f"the metric {name!r} moves by {moved:.3g}, and rounding explains {allowed:.3g}"
    words = f"{len(base) - len(restless)} held-out metrics equal to rounding"
    if restless:
        words += f" (left out: {', '.join(restless)}, which two passes over the same weights do not agree on)"
    return True, words


def _repeats_itself(value: float, again: float | None) -> bool:
    """Whether two passes over the same weights give the same; what is no number in both does."""
    if again is None or value == again or (math.isnan(value) and math.isnan(again)):
        return True
    return abs(again - value) <= ROUNDING_EPS * abs(value)
