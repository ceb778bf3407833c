"""Export a trained detector as an ONNX file.

The file takes `images`, float32 `[batch, 3, size, size]` from 0 to 1 (letterboxed RGB images, any batch size), and returns
`boxes`, float32 `[batch, anchors, 4]` (x1, y1, x2, y2 in pixels), and `scores`, float32 `[batch, anchors, classes]`. It does
not suppress overlapping boxes. Its metadata contains the class names and the image size.
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
"""Largest allowed differences of outputs, in pixels and in score. Both sides compute in float32, in different order."""


class BoxesAndScores(nn.Module):
    """Wrap a detector so that it returns only boxes and scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return boxes and scores of images."""
        output: Output = self.model(images)
        return output.boxes, output.scores


def export_onnx(model: nn.Module, path: Path, *, size: int, classes: Sequence[str] = ()) -> dict[str, float]:
    """Write the ONNX file, compare it with the model, and keep it if they agree.

    Args:
        model: A `Detector` or its average; exported as called in `eval` mode. It is not changed.
        path: The file; replaced only if the outputs agree.
        size: Side of the images in pixels.
        classes: Class names for the file's metadata.

    Returns:
        The largest difference of `boxes` (pixels) and of `scores`.

    Raises:
        MachineError: A required package is not installed (`hasten[recipes]`), or the file cannot be written.
        HastenError: The file's outputs differ from the model's; the file was removed.
    """
    averaged = getattr(model, "average", model)
    metadata = {"classes": json.dumps(list(classes)), "size": str(size)}
    return write_onnx(BoxesAndScores(averaged), path, size=(size, size), outputs=TOLERANCES, metadata=metadata)
