"""A trained detector as an ONNX file.

The file takes `images`, float32 `[batch, 3, size, size]` from 0 to 1 (a letterboxed picture, RGB), with any batch size, and
gives `boxes`, float32 `[batch, anchors, 4]` (x1, y1, x2, y2 in pixels), and `scores`, float32 `[batch, anchors, classes]`.
What overlaps is not suppressed in it. The names of the classes and the size stand in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from hasten.recipes.detection.model import Output
from hasten.recipes.onnx_file import write_onnx

TOLERANCES: Mapping[str, float] = {"boxes": 0.05, "scores": 1e-3}
"""How far outputs may differ: in pixels, and in score. Both compute in float32, in another order."""


class Plain(nn.Module):
    """A detector that gives boxes and scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Boxes and scores of pictures."""
        output: Output = self.model(images)
        return output.boxes, output.scores


def export_onnx(model: nn.Module, path: Path, *, size: int, classes: Sequence[str] = ()) -> dict[str, float]:
    """Write the ONNX file, run it beside the model, and keep it where they agree.

    Args:
        model: A `Detector`, or its average: what `eval` mode calls is written. It is not changed.
        path: The file; replaced only by one that agrees.
        size: Side of the pictures in pixels.
        classes: Names, for the file's metadata.

    Returns:
        The largest difference seen of `boxes` (pixels) and of `scores`.

    Raises:
        MachineError: What is needed is not installed (`hasten[recipes]`), or the file cannot be written.
        HastenError: The file gives other numbers than the model; it was removed.
    """
    averaged = getattr(model, "average", model)
    noted = {"classes": json.dumps(list(classes)), "size": str(size)}
    return write_onnx(Plain(averaged), path, size=(size, size), outputs=TOLERANCES, metadata=noted)
