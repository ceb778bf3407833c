"""A trained text detector as an ONNX file.

The file takes `images`, float32 `[batch, 3, height, width]` from 0 to 1 (RGB, fitted into the job's size), with any batch
size, and gives `probability`, float32 `[batch, 1, height, width]`: of text, shrunk as in training. The normalisation is in
it; finding boxes in the map is not (`hasten.recipes.ocr.postprocess`). The size and what texts were shrunk by stand in its
metadata.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hasten.recipes.ocr.batch import MEAN, STD
from hasten.recipes.onnx_file import write_onnx

TOLERANCE = 1e-3
"""How far a probability may differ: both compute in float32, in another order."""


class Plain(nn.Module):
    """A network that takes pictures from 0 to 1 and gives probabilities."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        """The map of probabilities."""
        return (torch.sigmoid(self.model((images - self.mean) / self.std)),)


def export_onnx(model: nn.Module, path: Path, *, size: tuple[int, int], shrink_ratio: float) -> dict[str, float]:
    """Write the ONNX file, run it beside the model, and keep it where they agree.

    Args:
        model: A `DBNet`. It is not changed.
        path: The file; replaced only by one that agrees.
        size: Height and width of the pictures.
        shrink_ratio: What texts were shrunk by, for the file's metadata.

    Returns:
        The largest difference seen of `probability`.

    Raises:
        MachineError: What is needed is not installed (`hasten[recipes]`), or the file cannot be written.
        HastenError: The file gives other numbers than the model; it was removed.
    """
    noted = {"size": f"{size[0]} {size[1]}", "shrink_ratio": str(shrink_ratio)}
    return write_onnx(Plain(model), path, size=size, outputs={"probability": TOLERANCE}, metadata=noted)
