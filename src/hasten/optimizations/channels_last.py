"""Store images and convolution weights in channels-last memory format, which fast convolution kernels expect.

Relieves:  compute: convolutions, pooling and batch normalisation run without layout copies.
Numerics:  rounding: other kernels, which sum in a different order.
Limits:    models with 2-d convolutions, and 4-d batch tensors. On a CPU it is refused for a 1x1 convolution that has a
           stride and fewer than 16 input channels: the gradient of its weights is written out of bounds, which crashes the
           process or corrupts other data (https://github.com/uxlfoundation/oneDNN/issues/6035; observed with torch 2.13 in
           float32).
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
"""Channels that oneDNN processes together with AVX-512. Narrower instruction sets process fewer."""


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(Optimization):
    """Channels-last memory format for the model and its 4-d inputs."""

    card: ClassVar[Card] = Card(
        name="channels_last",
        summary="store images and convolution weights in channels-last memory format",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.BATCH,
        source="PyTorch tutorial, Channels Last Memory Format",
        hoped_gain=(
            "22 % faster ResNet50 training, and 8 to 35 % over a selection of models on a V100, as fast.ai cites PyTorch "
            "(https://docs.fast.ai/callback.channelslast.html)"
        ),
        pays_with=("precision",),
        prior=0.3,
        claims=frozenset({"memory_format"}),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the model has 2-d convolutions and no 3-d convolutions."""
        convolutions = facts.job.module_counts.get("Conv2d", 0) + facts.job.module_counts.get("ConvTranspose2d", 0)
        if not convolutions:
            return Fit.no("the model has no 2-d convolution")
        if facts.job.module_counts.get("Conv3d", 0) + facts.job.module_counts.get("ConvTranspose3d", 0):
            return Fit.no("the model also has 3-d convolutions, whose weights do not support the 2-d channels-last format")
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.75, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Convert the weights once, and each batch when it arrives.

        Raises:
            JobError: The model has a layer whose gradient would be written out of bounds in this memory format.
        """
        if live.device.type == "cpu" and (unsafe := _out_of_bounds(live.model)):
            raise JobError(
                f"The layer {unsafe} is a 1x1 convolution with a stride and fewer than {_BLOCK} input channels: in "
                "channels-last memory format on a CPU, its gradient is written out of bounds "
                "(https://github.com/uxlfoundation/oneDNN/issues/6035). "
                "Remove channels_last from the plan."
            )
        undo_batch = append_to(live.batch_transforms, _images_last)
        live.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def undo() -> None:
            undo_batch()
            live.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that convolutions returned channels-last tensors."""
        seen = sum(count for op, count in trace.channels_last.items() if op.startswith("convolution"))
        return [Check("convolutions with channels-last results", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the lines that convert the model and its inputs."""
        return (
            "model = model.to(memory_format=torch.channels_last)",
            "x = x.contiguous(memory_format=torch.channels_last)",
        )

    def write_patch(self, script: SourceEdits) -> str:
        """Convert the weights where the model is created, and the inputs that are plain variables."""
        for place in script.mentions("torch.channels_last"):
            raise NothingToWriteError(f"the script already uses channels_last ({place})")
        model = script.model()
        where = model.add(f"{model.name} = {model.name}.to(memory_format={{torch.channels_last}})", wrapped=False)
        try:
            forward = script.forward()
        except UnwritableError:
            return f"the weights {where}; not the inputs, because no call of the model was found"
        convert = "    {0} = {0}.contiguous(memory_format={{torch.channels_last}})"
        lines = [line for name in forward.inputs for line in (f"if {name}.dim() == 4:", convert.format(name))]
        if not lines:
            return f"the weights {where}; not the inputs, because they are not plain variables"
        return f"the weights {where}; the inputs {', '.join(forward.inputs)} {forward.before(*lines)}"


def _images_last(batch: Any) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return map_tensors(batch, convert)


def _out_of_bounds(model: nn.Module) -> str | None:
    """Return the name of a layer whose gradient would be written out of bounds, or None."""
    for name, layer in model.named_modules():
        strided = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.stride != (1, 1)
        if strided and layer.in_channels // layer.groups < _BLOCK:
            return str(name)
    return None
