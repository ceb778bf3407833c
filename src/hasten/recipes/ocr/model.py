"""DBNet: a backbone, a feature pyramid, and two heads that map an image to text probability and threshold.

The network is trained from scratch, so nothing is downloaded. It uses BatchNorm everywhere. Each residual branch starts as
zero (its last scale is 0). The heads start with the values of most pixels: text is rare, and the threshold map is at its
minimum. The default widths suit two CPU cores; `width=64` is the published ResNet-18.

Source: Liao et al. 2020, "Real-time Scene Text Detection with Differentiable Binarization"; He et al. 2016 (ResNet); Sandler
et al. 2018 (MobileNetV2); Lin et al. 2017 (feature pyramids, and the prior of the output's bias, in "Focal Loss").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses

Backbone: TypeAlias = Literal["resnet", "mobile"]

STRIDE = 32
"""Image sides must be multiples of this, in pixels."""
TEXT_PRIOR = 0.05
"""Fraction of pixels that the untrained network classifies as text."""
THRESHOLD_PRIOR = 0.3
"""Value of the threshold map far from text."""


class ConvNorm(nn.Module):
    """A convolution, BatchNorm, and an optional ReLU.

    Args:
        convolution: The convolution, without a bias.
        relu: Whether to apply ReLU.
    """

    def __init__(self, convolution: nn.Conv2d | nn.ConvTranspose2d, *, relu: bool = True) -> None:
        super().__init__()
        self.convolution, self.relu = convolution, relu
        self.norm = nn.BatchNorm2d(convolution.out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inputs, height, width]` to `[batch, outputs, ...]`."""
        out: torch.Tensor = self.norm(self.convolution(x))
        return F.relu_(out) if self.relu else out


def conv(inputs: int, outputs: int, size: int = 3, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Create a convolution that keeps the size (divided by the stride), without a bias."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False)


class Residual(nn.Module):
    """Two convolutions with a skip connection, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(conv(inputs, outputs, stride=stride))
        self.last = ConvNorm(conv(outputs, outputs), relu=False)
        same = stride == 1 and inputs == outputs
        self.around = nn.Identity() if same else ConvNorm(conv(inputs, outputs, 1, stride=stride), relu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inputs, height, width]` to `[batch, outputs, height / stride, width / stride]`."""
        return F.relu_(self.last(self.first(x)) + self.around(x))


class Inverted(nn.Module):
    """An inverted residual block of MobileNetV2: expand, depthwise convolution, project."""

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
    """A backbone: features at 1/4, 1/8, 1/16 and 1/32 of the image's sides.

    Args:
        kind: `resnet` (two residual blocks per stage) or `mobile` (inverted residuals; fewer operations, more memory
            traffic).
        width: Channels of the first stage; each later stage doubles them.
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


class Pyramid(nn.Module):
    """A feature pyramid: coarse features are added to the fine ones, and all four levels are concatenated.

    Args:
        channels: Channels of the four features, finest first.
        inner: Channels of the output; a multiple of 4.
    """

    def __init__(self, channels: Sequence[int], inner: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(conv(count, inner, 1) for count in channels)
        self.smooth = nn.ModuleList(conv(inner, inner // 4) for _ in channels)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        """Map the features to `[batch, inner, height / 4, width / 4]`."""
        levels = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        for fine in range(len(levels) - 2, -1, -1):
            levels[fine] = levels[fine] + F.interpolate(levels[fine + 1], scale_factor=2.0, mode="nearest")
        smooth = [layer(level) for layer, level in zip(self.smooth, levels, strict=True)]
        enlarged = [F.interpolate(level, scale_factor=float(2**n), mode="nearest") for n, level in enumerate(smooth[1:], 1)]
        return torch.cat([smooth[0], *enlarged], dim=1)


class Head(nn.Sequential):
    """Map the pyramid to one map of the image's size, as logits.

    Args:
        inner: Channels of the pyramid.
        prior: Value of the map before training, as a probability.
    """

    def __init__(self, inner: int, prior: float) -> None:
        narrow = inner // 4
        last = nn.ConvTranspose2d(narrow, 1, 2, stride=2)
        wider = nn.ConvTranspose2d(narrow, narrow, 2, stride=2, bias=False)
        super().__init__(ConvNorm(conv(inner, narrow)), ConvNorm(wider), last)
        _init_convolutions(self)
        nn.init.normal_(last.weight, std=0.01)
        if last.bias is not None:
            nn.init.constant_(last.bias, math.log(prior / (1 - prior)))


class DBNet(nn.Module):
    """Text detection with differentiable binarization.

    Args:
        backbone: `resnet` or `mobile`.
        width: Channels of the backbone's first stage; a multiple of 4.
    """

    def __init__(self, backbone: Backbone = "resnet", width: int = 16) -> None:
        super().__init__()
        self.backbone = Stages(backbone, width)
        self.pyramid = Pyramid(self.backbone.channels, 4 * width)
        _init_convolutions(self)
        for module in self.backbone.modules():
            if isinstance(module, Residual) or (isinstance(module, Inverted) and module.keeps):
                nn.init.zeros_(module.last.norm.weight)  # the branch starts as zero
        self.probability = Head(4 * width, TEXT_PRIOR)
        self.threshold = Head(4 * width, THRESHOLD_PRIOR)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images to logits.

        Args:
            images: Normalized, `[batch, 3, height, width]`, sides multiples of 32.

        Returns:
            In training `[batch, 2, height, width]`: probability and threshold. Otherwise `[batch, 1, height, width]`: only
            the probability, which is all that boxes need.
        """
        features = self.pyramid(self.backbone(images))
        probability: torch.Tensor = self.probability(features)
        if not self.training:
            return probability
        return torch.cat([probability, self.threshold(features)], dim=1)


def _init_convolutions(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
