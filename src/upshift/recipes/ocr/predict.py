"""Find text in one picture with a trained network, and draw what was found."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from upshift.recipes.ocr.boxes import Boxes, fast_boxes
from upshift.recipes.ocr.data import fit
from upshift.recipes.ocr.job import MEAN, STD, NaiveOcrJob
from upshift.recipes.pictures import Picture, opencv


def find_text(model: nn.Module, picture: Picture, job: NaiveOcrJob) -> Boxes:
    """Find text as the job would on a held-out picture; the boxes are in the picture's own pixels.

    Args:
        model: The network of the job, with trained weights; it is left in eval mode.
        picture: `uint8 [height, width, 3]`, RGB, as `upshift.recipes.pictures.read_picture` gives it.
        job: Says the size to work at and what counts as a text.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    fitted, scale, place = fit(picture, job.canonical_size())
    device = next(model.parameters()).device
    images = torch.from_numpy(fitted)[None].permute(0, 3, 1, 2).to(device, torch.float32)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    model.eval()
    with torch.inference_mode():
        logits = model((images / 255 - mean) / std)
    boxes = fast_boxes(torch.sigmoid(logits[0, 0].float()).cpu().numpy(), job.box_settings())
    corners = (boxes.corners - np.asarray(place, dtype=np.float32)) / np.asarray(scale, dtype=np.float32)
    return Boxes(corners.astype(np.float32), boxes.scores)


def shown(picture: Picture, boxes: Boxes) -> Picture:
    """A copy of the picture with the outlines of the boxes in red.

    Args:
        picture: `uint8 [height, width, 3]`.
        boxes: In its pixels.
    """
    drawn = picture.copy()
    outlines = [np.rint(corners).astype(np.int32) for corners in boxes.corners]
    opencv().polylines(
        drawn, outlines, isClosed=True, color=(220, 30, 30), thickness=max(1, round(max(picture.shape) / 500))
    )
    return drawn
