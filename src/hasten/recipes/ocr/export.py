"""Export a trained text detector as an ONNX file.

The file takes `images`, float32 `[batch, 3, height, width]` from 0 to 1 (RGB, fitted into the job's size, any batch size),
and returns `probability`, float32 `[batch, 1, height, width]`: the probability of text, shrunk as in training. Normalization
is included; finding boxes in the map is not (see `hasten.recipes.ocr.postprocess`). The metadata contains the size and the
shrink ratio.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hasten.recipes.ocr.batch import MEAN, STD
from hasten.recipes.onnx_file import write_onnx

TOLERANCE = 1e-3
"""Largest allowed difference of a probability. Both sides compute in float32, in different order."""


class Normalized(nn.Module):
    """Wrap a network so that it takes images from 0 to 1 and returns probabilities."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the map of probabilities."""
        return (torch.sigmoid(self.model((images - self.mean) / self.std)),)


def export_onnx(model: nn.Module, path: Path, *, size: tuple[int, int], shrink_ratio: float) -> dict[str, float]:
    """Write the ONNX file, compare it with the model, and keep it if they agree.

    Args:
        model: A `DBNet`. It is not changed.
        path: The file; replaced only if the outputs agree.
        size: Height and width of the images.
        shrink_ratio: The shrink ratio of the targets, for the file's metadata.

    Returns:
        The largest difference of `probability`.

    Raises:
        MachineError: A required package is not installed (`hasten[recipes]`), or the file cannot be written.
        HastenError: The file's outputs differ from the model's; the file was removed.
    """
    metadata = {"size": f"{size[0]} {size[1]}", "shrink_ratio": str(shrink_ratio)}
    return write_onnx(Normalized(model), path, size=size, outputs={"probability": TOLERANCE}, metadata=metadata)
