"""Two heads of one shape over the same features, in training, as one network of twice the width.

Their first convolutions read the features once. What follows widens each pixel to four, twice, with nothing between pixels:
so it is done in convolutions of one pixel, whose outputs lie beside one another until the last are laid out. Weights between
the heads, and between pixels that do not meet, are zeros. The same sums, in layers that are large enough for bfloat16 units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.ocr.layout import laid_out
from hasten.recipes.ocr.normed import can_norm, norm_relu

if TYPE_CHECKING:
    from hasten.recipes.ocr.model import ConvNorm, Head

SIDE = 4
"""How many times as high and wide the maps are as the features."""


def through_heads(heads: Sequence[Head], features: torch.Tensor) -> torch.Tensor:
    """What the heads say in training; running statistics of their norms move as they do one by one.

    Args:
        heads: Of one shape.
        features: `[batch, inner, height, width]`.

    Returns:
        Logits, `[batch, heads, 4 height, 4 width]`.
    """
    parts = [head.parts() for head in heads]
    firsts, widers, lasts = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
    weight = torch.cat([first.convolution.weight for first in firsts])
    x = F.conv2d(features.contiguous(memory_format=torch.channels_last), weight, padding=1)
    x = _norm_relu(firsts, x)
    batch, channels, height, width = x.shape
    x = F.conv2d(x, _widening([wider.convolution.weight for wider in widers]))
    x = x.permute(0, 2, 3, 1).reshape(batch, height, width * SIDE, channels).permute(0, 3, 1, 2)
    x = _norm_relu(widers, x)
    x = x.permute(0, 2, 3, 1).reshape(batch, height, width, SIDE * channels).permute(0, 3, 1, 2)
    bias = torch.cat([_bias(last).expand(SIDE * SIDE) for last in lasts])
    x = F.conv2d(x, _last([last.weight for last in lasts]), bias)
    return laid_out(x, SIDE) if can_norm(x) else F.pixel_shuffle(x.contiguous(), SIDE)


def _widening(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """From transposed convolutions, `[inputs, outputs, 2, 2]` each: outputs are (row, column, head, channel)."""
    count, (inputs, outputs) = len(weights), weights[0].shape[:2]
    made = weights[0].new_zeros(2, 2, count, outputs, count, inputs)
    for at, weight in enumerate(weights):
        made[:, :, at, :, at, :] = weight.permute(2, 3, 1, 0)
    return made.view(4 * count * outputs, count * inputs, 1, 1)


def _last(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """From transposed convolutions, `[inputs, 1, 2, 2]` each, over what `_widening` laid out; outputs as shuffled."""
    count, inputs = len(weights), weights[0].shape[0]
    made = weights[0].new_zeros(count, 2, 2, 2, 2, 2, 2, count, inputs)
    for at, weight in enumerate(weights):
        own = weight[:, 0].permute(1, 2, 0)
        for row in range(2):
            for column in range(2):
                made[at, row, :, column, :, row, column, at, :] = own
    return made.view(count * SIDE * SIDE, 4 * count * inputs, 1, 1)


def _norm_relu(layers: Sequence[ConvNorm], x: torch.Tensor) -> torch.Tensor:
    """The positive part of the norms of several layers over their channels side by side."""
    norms = [layer.norm for layer in layers]
    if can_norm(x):
        return norm_relu(norms, x)
    means, variances = (torch.cat([_buffer(norm, name) for norm in norms]) for name in ("running_mean", "running_var"))
    weight, bias = (torch.cat([getattr(norm, name) for norm in norms]) for name in ("weight", "bias"))
    out = F.batch_norm(x, means, variances, weight, bias, training=True, momentum=norms[0].momentum or 0.0, eps=norms[0].eps)
    with torch.no_grad():
        for norm, mean, variance in zip(norms, means.chunk(len(norms)), variances.chunk(len(norms)), strict=True):
            _buffer(norm, "running_mean").copy_(mean)
            _buffer(norm, "running_var").copy_(variance)
            _buffer(norm, "num_batches_tracked").add_(1)
    return F.relu_(out)


def _buffer(norm: nn.BatchNorm2d, name: str) -> torch.Tensor:
    found = getattr(norm, name)
    if not isinstance(found, torch.Tensor):
        raise AssertionError("a BatchNorm of this network keeps running statistics")  # noqa: TRY004
    return found


def _bias(layer: nn.ConvTranspose2d) -> torch.Tensor:
    if layer.bias is None:
        raise AssertionError("the last layer of a head has a bias")
    return layer.bias
