"""A one-stage, anchor-free detector in plain PyTorch: each cell of three maps predicts the distances to a box's four sides.

An image passes through the backbone (cross-stage blocks that each halve the resolution, then pooling over several window
sizes), the neck (an upward path that adds semantics to the fine maps, and a downward path that adds positions to the coarse
ones), and heads with two branches each, for distances and for classes, at strides of 8, 16 and 32 pixels.

Boxes are not needed in training, since the loss reads the maps. A light detector therefore computes none in training. The
full detector computes them at every step, as monolithic detectors do.

Sources: the layout follows Ultralytics' description of YOLOv8; Wang et al. 2019, CSPNet (https://arxiv.org/abs/1911.11929);
Liu et al. 2018, PANet (https://arxiv.org/abs/1803.01534); Ge et al. 2021, YOLOX (https://arxiv.org/abs/2107.08430) for
decoupled heads; Lin et al. 2017, Focal Loss (https://arxiv.org/abs/1708.02002) for the prior in the class biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import nn

from hasten.core.errors import JobError
from hasten.recipes.detection.decode import decode_boxes

STRIDES = (8, 16, 32)
"""Pixels between neighbouring anchors of each map."""
PARTS = ("backbone", "neck", "head")
OBJECTS_EXPECTED = 5.0
"""Number of objects assumed in an image of `PRIOR_SIZE` pixels when the class biases are initialized."""
PRIOR_SIZE = 640


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of a detector.

    Attributes:
        depth: Factor of the number of residual blocks.
        width: Factor of the number of channels.
        max_channels: Largest number of channels, before `width` is applied.
        num_bins: Number of distances that a side can have, 0 to num_bins - 1 strides. Half an object must fit into
            `(num_bins - 1) * 32` pixels.
    """

    depth: float
    width: float
    max_channels: int
    num_bins: int

    @property
    def longest_side(self) -> int:
        """Longest side of a box in pixels that the coarsest map can predict from the box's centre."""
        return 2 * (self.num_bins - 1) * STRIDES[-1]

    def channels(self, wanted: int) -> int:
        """Scale a channel count to this size; the result is a multiple of 8."""
        return math.ceil(min(wanted, self.max_channels) * self.width / 8) * 8

    def blocks(self, wanted: int) -> int:
        """Scale a block count to this size."""
        return max(round(wanted * self.depth), 1)


SHAPES: Mapping[str, Shape] = {
    "nano": Shape(depth=0.33, width=0.25, max_channels=1024, num_bins=8),
    "small": Shape(depth=0.33, width=0.5, max_channels=1024, num_bins=16),
    "medium": Shape(depth=0.67, width=0.75, max_channels=768, num_bins=16),
    "large": Shape(depth=1.0, width=1.0, max_channels=512, num_bins=16),
}


def shape_named(name: str) -> Shape:
    """Return the shape with the given name.

    Raises:
        JobError: The name is unknown.
    """
    if name not in SHAPES:
        raise JobError(f"model_size is {name!r}; choose one of {', '.join(SHAPES)}.")
    return SHAPES[name]


class Output(NamedTuple):
    """A detector's output for a batch.

    Attributes:
        distances: `[batch, anchors, 4 * num_bins]`, logits of the distances to the left, top, right and bottom side.
        logits: `[batch, anchors, classes]`.
        anchors: float32 `[anchors, 3]`: centre x, centre y, stride, all in pixels.
        boxes: float32 `[batch, anchors, 4]`, x1, y1, x2, y2 in pixels; None from a light detector in training.
        scores: float32 `[batch, anchors, classes]`, from 0 to 1; likewise.
    """

    distances: torch.Tensor
    logits: torch.Tensor
    anchors: torch.Tensor
    boxes: torch.Tensor | None = None
    scores: torch.Tensor | None = None


MOMENTUM = 0.1
"""Weight of each batch in the running statistics of batch normalization. Detectors trained for days use 0.03. In a short run
of a few hundred updates, those statistics would lag behind the weights, and a model that fits its images in training would
find nothing in `eval` mode."""


class Convolution(nn.Sequential):
    """Convolution, batch normalisation, SiLU: [batch, inputs, height, width] to [batch, outputs, height / stride, ...]."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=MOMENTUM)
        self.act = nn.SiLU()


class Residual(nn.Module):
    """Two convolutions, with a skip connection if `around` is set."""

    def __init__(self, channels: int, *, around: bool) -> None:
        super().__init__()
        self.first = Convolution(channels, channels, 3)
        self.second = Convolution(channels, channels, 3)
        self.around = around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        hidden: torch.Tensor = self.second(self.first(x))
        return x + hidden if self.around else hidden


class CrossStage(nn.Module):
    """Pass half of the channels through residual blocks, and concatenate the outputs of all blocks at the end."""

    def __init__(self, inputs: int, outputs: int, num_blocks: int, *, around: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = Convolution(inputs, 2 * half)
        self.blocks = nn.ModuleList(Residual(half, around=around) for _ in range(num_blocks))
        self.leave = Convolution((2 + num_blocks) * half, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, inputs, height, width] to [batch, outputs, height, width]."""
        parts = list(self.enter(x).chunk(2, dim=1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        output: torch.Tensor = self.leave(torch.cat(parts, dim=1))
        return output


class WindowPooling(nn.Module):
    """Add maximum pooling over windows of 5, 9 and 13 cells to a map, computed as three successive poolings of 5."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = Convolution(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.leave = Convolution(2 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        output: torch.Tensor = self.leave(torch.cat(parts, dim=1))
        return output


class Backbone(nn.Module):
    """Compute feature maps at strides 8, 16 and 32 from pixels."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        widths = [shape.channels(wanted) for wanted in (64, 128, 256, 512, 1024)]
        self.stem = Convolution(3, widths[0], 3, stride=2)
        self.stages = nn.ModuleList(
            nn.Sequential(
                Convolution(inputs, outputs, 3, stride=2),
                CrossStage(outputs, outputs, shape.blocks(wanted), around=True),
            )
            for inputs, outputs, wanted in zip(widths[:-1], widths[1:], (3, 6, 6, 3), strict=True)
        )
        self.pooling = WindowPooling(widths[-1])
        self.widths = tuple(widths[2:])

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Map [batch, 3, height, width] to maps [batch, widths[i], height / stride, width / stride]."""
        x, maps = self.stem(images), []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number > 0:
                maps.append(x)
        maps[-1] = self.pooling(maps[-1])
        return maps


class Neck(nn.Module):
    """An upward path through the maps, then a downward path; each map keeps its size."""

    def __init__(self, widths: Sequence[int], num_blocks: int) -> None:
        super().__init__()
        fine, middle, coarse = widths
        self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")
        self.up_middle = CrossStage(coarse + middle, middle, num_blocks, around=False)
        self.up_fine = CrossStage(middle + fine, fine, num_blocks, around=False)
        self.shrink_fine = Convolution(fine, fine, 3, stride=2)
        self.down_middle = CrossStage(fine + middle, middle, num_blocks, around=False)
        self.shrink_middle = Convolution(middle, middle, 3, stride=2)
        self.down_coarse = CrossStage(middle + coarse, coarse, num_blocks, around=False)

    def forward(self, maps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return maps of the same shapes."""
        fine, middle, coarse = maps
        middle = self.up_middle(torch.cat([self.enlarge(coarse), middle], dim=1))
        fine = self.up_fine(torch.cat([self.enlarge(middle), fine], dim=1))
        middle = self.down_middle(torch.cat([self.shrink_fine(fine), middle], dim=1))
        coarse = self.down_coarse(torch.cat([self.shrink_middle(middle), coarse], dim=1))
        return [fine, middle, coarse]


class Head(nn.Module):
    """For each map, one branch for distances and one for classes."""

    def __init__(self, widths: Sequence[int], num_classes: int, num_bins: int) -> None:
        super().__init__()
        for_boxes = max(16, widths[0] // 4, 4 * num_bins)
        for_classes = max(widths[0], min(num_classes, 100))
        priors = [math.log(OBJECTS_EXPECTED / num_classes / (PRIOR_SIZE / stride) ** 2) for stride in STRIDES]
        self.boxes = nn.ModuleList(_branch(width, for_boxes, 4 * num_bins, bias=1.0) for width in widths)
        self.classes = nn.ModuleList(
            _branch(width, for_classes, num_classes, bias=prior) for width, prior in zip(widths, priors, strict=True)
        )

    def forward(self, maps: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return distances `[batch, anchors, 4 * num_bins]` and class logits, ordered map by map and row by row."""
        distances = [branch(x) for branch, x in zip(self.boxes, maps, strict=True)]
        logits = [branch(x) for branch, x in zip(self.classes, maps, strict=True)]
        return _by_anchor(distances), _by_anchor(logits)


class Detector(nn.Module):
    """Predict boxes and classes from images.

    Args:
        num_classes: Number of classes.
        shape: Size of the detector.
        light: In training, return only the maps and no boxes.

    Attributes:
        frozen: Parts (of `PARTS`) whose weights and statistics do not change; see `freeze`.
    """

    def __init__(self, num_classes: int, shape: Shape, *, light: bool = True) -> None:
        super().__init__()
        self.backbone = Backbone(shape)
        self.neck = Neck(self.backbone.widths, shape.blocks(3))
        self.head = Head(self.backbone.widths, num_classes, shape.num_bins)
        self.light = light
        self.frozen: tuple[str, ...] = ()

    def forward(self, images: torch.Tensor) -> Output:
        """Process images, float `[batch, 3, height, width]` from 0 to 1; height and width are multiples of 32."""
        maps = self.backbone(images)
        distances, logits = self.head(self.neck(maps))
        anchors = anchor_points([(x.shape[2], x.shape[3]) for x in maps], images.device)
        if self.training and self.light:
            return Output(distances, logits, anchors)
        return Output(distances, logits, anchors, decode_boxes(distances, anchors), logits.float().sigmoid())

    def freeze(self, parts: Sequence[str]) -> None:
        """Freeze these parts: no gradients, and batch normalization uses its current statistics.

        Raises:
            JobError: A name is not a part of the detector, or nothing would be left to train.
        """
        unknown = [part for part in parts if part not in PARTS]
        if unknown or set(parts) == set(PARTS):
            raise JobError(f"frozen is {tuple(parts)!r}: name some of {', '.join(PARTS)}, but not all of them.")
        self.frozen = tuple(parts)
        for part in self.frozen:
            self.get_submodule(part).requires_grad_(requires_grad=False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002  as torch has it
        """Set the training mode; frozen parts stay in eval mode."""
        super().train(mode)
        for part in self.frozen:
            self.get_submodule(part).eval()
        return self


def anchor_points(sizes: Sequence[tuple[int, int]], device: torch.device) -> torch.Tensor:
    """Return the anchors of maps with these heights and widths: float32 `[anchors, 3]`, centre x, centre y, stride (px)."""
    parts = []
    for (height, width), stride in zip(sizes, STRIDES, strict=True):
        y = (torch.arange(height, device=device, dtype=torch.float32) + 0.5) * stride
        x = (torch.arange(width, device=device, dtype=torch.float32) + 0.5) * stride
        rows, columns = torch.meshgrid(y, x, indexing="ij")
        parts.append(torch.stack([columns, rows, torch.full_like(rows, stride)], dim=-1).flatten(0, 1))
    return torch.cat(parts)


def _branch(inputs: int, hidden: int, outputs: int, *, bias: float) -> nn.Sequential:
    last = nn.Conv2d(hidden, outputs, 1)
    nn.init.constant_(last.bias, bias)  # type: ignore[arg-type]
    return nn.Sequential(Convolution(inputs, hidden, 3), Convolution(hidden, hidden, 3), last)


def _by_anchor(maps: Sequence[torch.Tensor]) -> torch.Tensor:
    """Flatten maps [batch, channels, height, width] into one tensor [batch, anchors, channels]."""
    return torch.cat([x.permute(0, 2, 3, 1).flatten(1, 2) for x in maps], dim=1)
