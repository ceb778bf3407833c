"""DBNet: a backbone, a feature pyramid, and two heads that map a picture to text probability and threshold.

Trained from scratch, so nothing is downloaded: BatchNorm everywhere, each residual branch begins as nothing (its last scale
is 0), and the heads begin with what is true of most pixels: text is rare, and the threshold map is at its floor. The widths
are small enough for two CPU cores; `width=64` is the published ResNet-18.

Source: Liao et al. 2020, "Real-time Scene Text Detection with Differentiable Binarization"; He et al. 2016 (ResNet); Sandler
et al. 2018 (MobileNetV2); Lin et al. 2017 (feature pyramids, and the prior of the output's bias, in "Focal Loss").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.ocr.layout import moved_out
from hasten.recipes.ocr.levels import add_coarse, can_lay, side_by_side
from hasten.recipes.ocr.normed import can_norm, norm_relu
from hasten.recipes.ocr.pointwise import can_join, convolved
from hasten.recipes.ocr.together import through_heads

Backbone: TypeAlias = Literal["resnet", "mobile"]

STRIDE = 32
"""Sides of a picture must be multiples of it."""
TEXT_PRIOR = 0.05
"""Share of pixels that the untrained network takes for text."""
THRESHOLD_PRIOR = 0.3
"""The threshold map far from text."""


class ConvNorm(nn.Module):
    """A convolution, BatchNorm, and ReLU where it is wanted.

    Args:
        convolution: Without a bias.
        relu: Whether ReLU follows.

    Attributes:
        folds: Whether, when not in training, the norm is made part of the convolution: one pass over memory in place of
            two. The same mathematics, rounded otherwise. The folded weights are made at each call, never kept. In training
            with bfloat16 on a CPU norm and ReLU are one operation: see `norm_relu`.
    """

    def __init__(self, convolution: nn.Conv2d | nn.ConvTranspose2d, *, relu: bool = True) -> None:
        super().__init__()
        self.convolution, self.relu, self.folds = convolution, relu, False
        self.norm = nn.BatchNorm2d(convolution.out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inputs, height, width]` to `[batch, outputs, ...]`."""
        if self.folds and not self.training:
            return self._folded(x, relu=self.relu)
        out = self.convolution(x)
        if self.folds and self.relu and can_norm(out):
            return norm_relu([self.norm], out)
        out = self.norm(out)
        return F.relu_(out) if self.relu else out

    def beside(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The positive part of what `forward` gives plus `other`."""
        if self.folds and self.training:
            out = self.convolution(x)
            if can_norm(out) and other.dtype is out.dtype:
                return norm_relu([self.norm], out, other)
            return F.relu_(self.norm(out) + other)
        if self.folds:
            return self._folded(x, relu=True, beside=other)
        return F.relu_(self(x) + other)

    def _folded(self, x: torch.Tensor, *, relu: bool, beside: torch.Tensor | None = None) -> torch.Tensor:
        layer, norm = self.convolution, self.norm
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None:
            raise AssertionError("a BatchNorm of this network keeps running statistics")
        scale = norm.weight * torch.rsqrt(variance + norm.eps)
        bias = norm.bias - mean * scale
        if isinstance(layer, nn.ConvTranspose2d):
            weight = layer.weight * scale.view(1, -1, 1, 1)
            out = F.conv_transpose2d(x, weight, bias, layer.stride, groups=layer.groups)
        else:
            weight = layer.weight * scale.view(-1, 1, 1, 1)
            if can_join(x):
                return convolved(x, weight, bias, layer, relu=relu, beside=beside)
            out = F.conv2d(x, weight, bias, layer.stride, layer.padding, groups=layer.groups)
        out = out if beside is None else out + beside
        return F.relu_(out) if relu else out


def conv(inputs: int, outputs: int, size: int = 3, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size (divided by the stride), without a bias."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False)


class Residual(nn.Module):
    """Two convolutions and a way around them, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(conv(inputs, outputs, stride=stride))
        self.last = ConvNorm(conv(outputs, outputs), relu=False)
        same = stride == 1 and inputs == outputs
        self.around = nn.Identity() if same else ConvNorm(conv(inputs, outputs, 1, stride=stride), relu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inputs, height, width]` to `[batch, outputs, height / stride, width / stride]`."""
        return self.last.beside(self.first(x), self.around(x))


class Inverted(nn.Module):
    """Widen, filter each channel by itself, narrow: a block of MobileNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int = 3) -> None:
        super().__init__()
        inner = widen * inputs
        self.keeps = stride == 1 and inputs == outputs
        self.widen = ConvNorm(conv(inputs, inner, 1))
        self.filter = ConvNorm(conv(inner, inner, stride=stride, groups=inner))
        self.last = ConvNorm(conv(inner, outputs, 1), relu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inputs, height, width]` to `[batch, outputs, height / stride, width / stride]`."""
        out: torch.Tensor = self.last(self.filter(self.widen(x)))
        return x + out if self.keeps else out


class Stages(nn.Module):
    """A backbone: features at a quarter, an eighth, a sixteenth and a thirty-second of the picture's sides.

    Args:
        kind: `resnet` (two residual blocks a stage) or `mobile` (inverted ones; fewer operations, more memory traffic).
        width: Channels of the first stage; each further one has twice as many.
    """

    def __init__(self, kind: Backbone, width: int) -> None:
        super().__init__()
        block = Residual if kind == "resnet" else Inverted
        self.stem = nn.Sequential(ConvNorm(conv(3, width, stride=2)), ConvNorm(conv(width, width)))
        self.channels = [width * 2**stage for stage in range(4)]
        inputs = [width, *self.channels[:-1]]
        self.stages = nn.ModuleList(
            nn.Sequential(block(before, after, 2), block(after, after, 1))
            for before, after in zip(inputs, self.channels, strict=True)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Map `[batch, 3, height, width]` to four tensors, the finest first."""
        features = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class Enlarged(torch.autograd.Function):
    """Each pixel repeated, as `F.interpolate` does it; the gradient is summed up by pooling, which a CPU does sooner."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, times: int) -> torch.Tensor:
        """Map `[batch, channels, height, width]` to as many times the height and width."""
        ctx.times = times
        return F.interpolate(x, scale_factor=float(times), mode="nearest")

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Sum the gradients of the pixels that one became."""
        return F.avg_pool2d(outer[0], ctx.times, divisor_override=1), None


class Pyramid(nn.Module):
    """A feature pyramid: what coarse features know is added to the fine ones, and all four are laid side by side.

    Args:
        channels: Of the four features, the finest first.
        inner: Channels of the output; a multiple of 4.

    Attributes:
        pools: Whether the gradient of what is enlarged is summed up by pooling; where no gradient is wanted, bfloat16
            levels on a CPU are added up and laid side by side without being enlarged before.
    """

    def __init__(self, channels: Sequence[int], inner: int) -> None:
        super().__init__()
        self.pools = False
        self.lateral = nn.ModuleList(conv(count, inner, 1) for count in channels)
        self.smooth = nn.ModuleList(conv(inner, inner // 4) for _ in channels)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        """Map the features to `[batch, inner, height / 4, width / 4]`."""
        levels = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        if self.pools and can_lay(levels):
            for fine in range(len(levels) - 2, -1, -1):
                add_coarse(levels[fine], levels[fine + 1])
            return side_by_side([layer(level) for layer, level in zip(self.smooth, levels, strict=True)])
        for fine in range(len(levels) - 2, -1, -1):
            levels[fine] = levels[fine] + self._enlarged(levels[fine + 1], 2)
        smooth = [layer(level) for layer, level in zip(self.smooth, levels, strict=True)]
        out = [smooth[0]]
        out += [self._enlarged(level, 2**at) for at, level in enumerate(smooth[1:], 1)]
        return torch.cat(out, dim=1)

    def _enlarged(self, x: torch.Tensor, times: int) -> torch.Tensor:
        if not self.pools:
            return F.interpolate(x, scale_factor=float(times), mode="nearest")
        out: torch.Tensor = Enlarged.apply(x, times)  # type: ignore[no-untyped-call]
        return out


class Head(nn.Sequential):
    """From the pyramid to one map of the picture's size, as logits.

    Args:
        inner: Channels of the pyramid.
        prior: What the map is everywhere before training, as a probability.

    Attributes:
        shuffles: Whether the last layer, whose steps are as long as it is wide, is computed as a convolution of one pixel
            with four outputs, which are then laid out. The same mathematics; with bfloat16 on a CPU it takes less time.
    """

    def __init__(self, inner: int, prior: float) -> None:
        narrow = inner // 4
        last = nn.ConvTranspose2d(narrow, 1, 2, stride=2)
        wider = nn.ConvTranspose2d(narrow, narrow, 2, stride=2, bias=False)
        super().__init__(ConvNorm(conv(inner, narrow)), ConvNorm(wider), last)
        self.shuffles = False
        _init_convolutions(self)
        nn.init.normal_(last.weight, std=0.01)
        nn.init.constant_(_bias(last), math.log(prior / (1 - prior)))

    def parts(self) -> tuple[ConvNorm, ConvNorm, nn.ConvTranspose2d]:
        """Its three layers."""
        first, wider, last = self.children()
        if not (isinstance(first, ConvNorm) and isinstance(wider, ConvNorm) and isinstance(last, nn.ConvTranspose2d)):
            raise AssertionError("a head has three layers of these kinds")  # noqa: TRY004
        return first, wider, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inner, height / 4, width / 4]` to `[batch, 1, height, width]`."""
        first, wider, last = self.parts()
        x = wider(first(x))
        if not self.shuffles:
            out: torch.Tensor = last(x)
            return out
        weight = last.weight.flatten(1).t()[:, :, None, None]
        x = F.conv2d(x, weight, _bias(last).expand(4))
        return moved_out(x, 2) if can_norm(x) and not x.requires_grad else F.pixel_shuffle(x.contiguous(), 2)


class DBNet(nn.Module):
    """Text detection by differentiable binarisation.

    Args:
        backbone: `resnet` or `mobile`.
        width: Channels of the backbone's first stage; a multiple of 4.
        rewritten: Compute some layers in other ways, which take less time and round otherwise: see `ConvNorm.folds`,
            `Head.shuffles` and `Pyramid.pools`. With bfloat16 on a CPU both heads train as one, see `through_heads`.
    """

    def __init__(self, backbone: Backbone = "resnet", width: int = 16, *, rewritten: bool = False) -> None:
        super().__init__()
        self.backbone = Stages(backbone, width)
        self.pyramid = Pyramid(self.backbone.channels, 4 * width)
        _init_convolutions(self)
        for module in self.backbone.modules():
            if isinstance(module, Residual) or (isinstance(module, Inverted) and module.keeps):
                nn.init.zeros_(module.last.norm.weight)  # the branch begins as nothing
        self.probability = Head(4 * width, TEXT_PRIOR)
        self.threshold = Head(4 * width, THRESHOLD_PRIOR)
        for module in self.modules():
            if isinstance(module, ConvNorm):
                module.folds = rewritten
            if isinstance(module, Head):
                module.shuffles = rewritten
        self.pyramid.pools = self.rewritten = rewritten

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map pictures to logits.

        Args:
            images: Normalised, `[batch, 3, height, width]`, sides multiples of 32.

        Returns:
            In training `[batch, 2, height, width]`: probability and threshold. Else `[batch, 1, height, width]`: the
            probability alone, since boxes need no more.
        """
        features = self.pyramid(self.backbone(images))
        if self.training and self.rewritten and features.device.type == "cpu" and features.dtype is torch.bfloat16:
            return through_heads((self.probability, self.threshold), features)
        probability: torch.Tensor = self.probability(features)
        if not self.training:
            return probability
        return torch.cat([probability, self.threshold(features)], dim=1)


def _init_convolutions(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _bias(layer: nn.ConvTranspose2d) -> torch.Tensor:
    if layer.bias is None:
        raise AssertionError("the last layer of a head has a bias")
    return layer.bias
