"""Lay images and convolution weights out channels-last, as fast convolution kernels want them.

Relieves:  compute: convolutions, pooling and batch normalisation without layout copies.
Numerics:  rounding: other kernels, other order of summation.
Limits:    models with 2-d convolutions; 4-d batch tensors. Not, on a CPU, where a convolution of one pixel has a stride and
           fewer than 16 inputs: the gradient of its weights is written out of bounds there, which ends the process or
           corrupts other numbers (https://github.com/uxlfoundation/oneDNN/issues/6035; seen with torch 2.13 in float32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hasten.core.batch import map_tensors
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to
from hasten.core.source_edits import NothingToWriteError, SourceEdits, UnwritableError

_BLOCK = 16
"""Channels that oneDNN takes together with AVX-512; with less wide instructions fewer."""


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(Optimization):
    """Channels-last memory format for the model and its 4-d inputs."""

    card: ClassVar[Card] = Card(
        name="channels_last",
        summary="images and convolution weights laid out channels-last",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.BATCH,
        source="PyTorch tutorial, Channels Last Memory Format",
        hoped_gain=(
            "22 % in ResNet50 training speed, 8 to 35 % across a selection of models on a V100, fast.ai says of PyTorch "
            "(https://docs.fast.ai/callback.channelslast.html)"
        ),
        pays_with=("precision",),
        prior=0.3,
        claims=frozenset({"memory_format"}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where 2-d convolutions take part of the step."""
        convolutions = facts.job.module_counts.get("Conv2d", 0) + facts.job.module_counts.get("ConvTranspose2d", 0)
        if not convolutions:
            return Fit.no("the model has no 2-d convolution")
        if facts.job.module_counts.get("Conv3d", 0) + facts.job.module_counts.get("ConvTranspose3d", 0):
            return Fit.no("the model has 3-d convolutions too: their weights have no channels-last form for images")
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.75, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Convert the weights once and each batch as it arrives.

        Raises:
            JobError: The model has a layer whose gradient is written out of bounds in this order.
        """
        if live.device.type == "cpu" and (unsafe := _out_of_bounds(live.model)):
            raise JobError(
                f"The layer {unsafe} is a convolution of one pixel with a stride and fewer than {_BLOCK} inputs: in "
                "channels-last order on a CPU its gradient is written out of bounds "
                "(https://github.com/uxlfoundation/oneDNN/issues/6035). "
                "Take channels_last out of the plan."
            )
        live.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        undo_batch = append_to(live.batch_transforms, _images_last)

        def undo() -> None:
            undo_batch()
            live.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Convolutions really gave channels-last results."""
        seen = sum(count for op, count in trace.channels_last.items() if op.startswith("convolution"))
        return [Check("convolutions with channels-last results", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """The conversion of the model and of its inputs."""
        return (
            "model = model.to(memory_format=torch.channels_last)",
            "x = x.contiguous(memory_format=torch.channels_last)",
        )

    def write_patch(self, script: SourceEdits) -> str:
        """Convert the weights where the model is made, and the inputs that are plain variables."""
        for place in script.mentions("torch.channels_last"):
            raise NothingToWriteError(f"channels_last is there already ({place})")
        model = script.model()
        where = model.add(f"{model.name} = {model.name}.to(memory_format={{torch.channels_last}})", wrapped=False)
        try:
            forward = script.forward()
        except UnwritableError:
            return f"the weights {where}; the inputs not: no call of the model was seen"
        convert = "    {0} = {0}.contiguous(memory_format={{torch.channels_last}})"
        lines = [line for name in forward.inputs for line in (f"if {name}.dim() == 4:", convert.format(name))]
        if not lines:
            return f"the weights {where}; the inputs not, which have no plain name"
        return f"the weights {where}; the inputs {', '.join(forward.inputs)} {forward.before(*lines)}"


def _images_last(batch: Any) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return map_tensors(batch, convert)


def _out_of_bounds(model: nn.Module) -> str | None:
    """The name of a layer whose gradient is written out of bounds."""
    for name, layer in model.named_modules():
        strided = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.stride != (1, 1)
        if strided and layer.in_channels // layer.groups < _BLOCK:
            return str(name)
    return None
