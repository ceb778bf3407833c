"""Store volumes and 3-d convolution weights in channels-last memory format, which fast convolution kernels expect.

Relieves:  compute: 3-d convolutions, pooling and batch normalisation run without layout copies.
Numerics:  rounding: other kernels, which sum in a different order.
Limits:    models with 3-d convolutions, and 5-d batch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from hasten.core.batch import map_tensors
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.source_edits import SourceEdits, UnwritableError

VOLUME_DIMS = 5
"""Number of dimensions of a volume: sample, channel, and three of space or time."""


@dataclass(frozen=True, kw_only=True)
class ChannelsLast3d(Optimization):
    """Channels-last memory format for the 5-d weights and 5-d inputs of the model."""

    card: ClassVar[Card] = Card(
        name="channels_last_3d",
        summary="store volumes and 3-d convolution weights in channels-last memory format",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.BATCH,
        source="PyTorch documentation, torch.memory_format, channels_last_3d",
        prior=0.3,
        claims=frozenset({"memory_format"}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the model has 3-d convolutions."""
        if not facts.job.module_counts.get("Conv3d", 0) + facts.job.module_counts.get("ConvTranspose3d", 0):
            return Fit.no("the model has no 3-d convolution")
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.75, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Convert the 5-d weights once, and each batch when it arrives."""
        weights = [p for p in live.model.parameters() if p.dim() == VOLUME_DIMS]
        undo_batch = append_to(live.batch_transforms, _volumes_last)
        _lay_out(weights, torch.channels_last_3d)

        def undo() -> None:
            undo_batch()
            _lay_out(weights, torch.contiguous_format)

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that convolutions returned channels-last tensors."""
        seen = sum(count for op, count in trace.channels_last.items() if op.startswith("convolution"))
        return [Check("convolutions with channels-last results", seen > 0, f"{seen} in one step")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: it is unknown which tensors of a batch are volumes."""
        raise UnwritableError(
            "it depends on parts of the script that Hasten does not read",
            "for parameter in model.parameters():",
            "    if parameter.dim() == 5:",
            "        parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)",
            "x = x.contiguous(memory_format=torch.channels_last_3d)  # each batch",
        )


def _lay_out(weights: list[torch.nn.Parameter], form: torch.memory_format) -> None:
    for weight in weights:  # Module.to would reject the 4-d weights that a model may also have
        weight.data = weight.data.contiguous(memory_format=form)


def _volumes_last(batch: Any) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last_3d) if tensor.dim() == VOLUME_DIMS else tensor

    return map_tensors(batch, convert)
