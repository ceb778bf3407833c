"""Metrics: their names, units and meaning.

Names are dotted, as in OpenTelemetry. Units are UCUM codes: `s`, `By`, `By/s`, `1` for a share, `{step}` for a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PHASE_PREFIX = "phase."
"""The seconds per step of each phase are metrics too: `phase.data`, `phase.forward`, ..."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that a run is followed by.

    Attributes:
        name: Dotted name, such as `system.disk.read`.
        unit: UCUM code of its unit.
        help: What it is, in one sentence.
    """

    name: str
    unit: str
    help: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a sampler reads.

    Attributes:
        source: Where the numbers come from.
        needs: What must be present for it to work; empty if nothing.
        metrics: The metrics that it may return.
    """

    name: str
    source: str
    needs: str = ""
    metrics: tuple[Metric, ...]


LOSS = Metric(name="training.loss", unit="1", help="The last training loss that was read.")
GRADIENT_NORM = Metric(
    name="training.gradient_norm", unit="1", help="Norm of the gradients, if the training clips them by their norm."
)
LEARNING_RATE = Metric(
    name="training.learning_rate", unit="1", help="Learning rate of the optimizer's first group of parameters."
)
STEP_TIME = Metric(name="training.step_time", unit="s", help="Seconds per step, including all work between steps.")
SAMPLES = Metric(name="training.samples", unit="{sample}/s", help="Samples per second, over all ranks.")
TOKENS = Metric(name="training.tokens", unit="{token}/s", help="Tokens per second, over all ranks.")
FLOPS = Metric(name="training.flops", unit="{operation}/s", help="Floating-point operations of the model per second.")
FLOP_UTILIZATION = Metric(
    name="training.flop_utilization", unit="1", help="Share of the device's peak operations that the model uses (MFU)."
)
SKIPPED = Metric(name="training.skipped_steps", unit="{step}", help="Steps skipped so far, because of infinite gradients.")

TRAINING = Card(
    name="training",
    source="the training loop or the attached script",
    metrics=(LOSS, GRADIENT_NORM, LEARNING_RATE, STEP_TIME, SAMPLES, TOKENS, FLOPS, FLOP_UTILIZATION, SKIPPED),
)
"""Metrics that the host of the training reports. Each host reports those that it knows."""

OWN = Card(
    name="monitor",
    source="the monitor",
    metrics=(
        Metric(name="monitor.cpu", unit="1", help="CPU seconds per second that the monitor's samplers use."),
        Metric(name="monitor.dropped", unit="{window}", help="Windows that sinks have dropped so far."),
        Metric(name="monitor.failures", unit="{failure}", help="Readings of samplers that have failed so far."),
    ),
)
"""Metrics of the monitor itself."""


def units(samplers: Mapping[str, Any]) -> dict[str, str]:
    """Return the unit of each metric of these samplers, of the training and of the monitor, by name."""
    cards = (*(kind.card for kind in samplers.values()), TRAINING, OWN)
    return {metric.name: metric.unit for card in cards for metric in card.metrics}
