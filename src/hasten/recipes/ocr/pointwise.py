"""A convolution and what follows it at each pixel as one operation, on a CPU, with bfloat16 and without a gradient.

As operations of PyTorch, what is beside a convolution and ReLU are passes of their own over the pixels. oneDNN does both
while it has them at hand; PyTorch calls it so where it compiles a network. The same numbers, rounded once in place of two or
three times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def can_join(x: torch.Tensor) -> bool:
    """Whether `convolved` takes such an input here and now."""
    return bool(
        x.dtype is torch.bfloat16
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch.backends.mkldnn.is_available()
        and torch._C._get_mkldnn_enabled()  # noqa: SLF001  what the property `torch.backends.mkldnn.enabled` asks
        and x.is_contiguous(memory_format=torch.channels_last)
        and not x.is_contiguous()  # as one pixel, or one channel, is in either order: then PyTorch takes another way
    )


def convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    layer: nn.Conv2d,
    *,
    relu: bool,
    beside: torch.Tensor | None = None,
) -> torch.Tensor:
    """What a convolution gives, plus what is beside it, and of that the positive part where ReLU is wanted.

    Args:
        x: `bfloat16 [batch, inputs, height, width]`, as `can_join` says.
        weight: `[outputs, inputs, ...]`.
        bias: `[outputs]`.
        layer: Whose stride, padding and groups they are; its own weights are not looked at.
        relu: Whether ReLU follows.
        beside: As large as the result.

    Returns:
        `bfloat16 [batch, outputs, ...]`, channels last in memory.

    Raises:
        TypeError: The padding is given by a name.
    """
    joined: Any = torch.ops.mkldnn._convolution_pointwise  # noqa: SLF001  what PyTorch's compiler calls; it has no other name
    if isinstance(layer.padding, str):
        raise TypeError(f"padding must be given in pixels here, not as {layer.padding!r}")
    how = (weight.to(x.dtype), bias.to(x.dtype), layer.padding, layer.stride, layer.dilation, layer.groups)
    out: torch.Tensor
    if beside is None:
        out = joined(x, *how, "relu" if relu else "none", [], "")
    elif layer.groups > 1:  # of these oneDNN adds nothing up
        out = joined(x, *how, "none", [], "").add_(beside)
        out = out.relu_() if relu else out
    else:
        beside = beside.to(x.dtype).contiguous(memory_format=torch.channels_last)
        out = joined.binary(x, beside, *how, "add", 1.0, "relu" if relu else None, [], "")
    return out
