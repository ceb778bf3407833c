"""Find text in one picture with a trained network, and draw what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hasten.recipes.ocr.batch import MEAN, STD
from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.postprocess import Boxes, Outlines, find_texts
from hasten.recipes.pictures import Picture, fit, opencv
from hasten.recipes.weights import load_weights


def trained(job: OcrJob, weights: Path) -> nn.Module:
    """The network of a job with the weights of a run of it.

    Args:
        job: The job.
        weights: FILE.safetensors, or the run's model.pt.

    Raises:
        HastenError: The file cannot be read, or holds another network.
    """
    network = job.model()
    load_weights(network, weights)
    return network.eval()


def look(model: nn.Module, picture: Picture, job: OcrJob) -> tuple[list[dict[str, Any]], Picture]:
    """What was found, the surest first, as plain data; and the picture with it drawn in."""
    texts = find_text(model, picture, job)
    found = [
        {"polygon": np.round(shape, 1).tolist(), "score": round(float(score), 4)}
        for shape, score in zip(texts.shapes, texts.scores, strict=True)
    ]
    return found, shown(picture, texts)


def find_text(model: nn.Module, picture: Picture, job: OcrJob) -> Boxes | Outlines:
    """Find text as the job would on a held-out picture, in its own pixels: boxes, or outlines where the job is `curved`.

    Args:
        model: The network of the job, with trained weights; it is left in eval mode.
        picture: `uint8 [height, width, 3]`, RGB, as `hasten.recipes.pictures.read_picture` gives it.
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
    texts = find_texts(torch.sigmoid(logits[0, 0].float()).cpu().numpy(), job.box_settings())
    offset, factor = np.asarray(place, dtype=np.float32), np.asarray(scale, dtype=np.float32)
    if isinstance(texts, Boxes):
        return Boxes(((texts.corners - offset) / factor).astype(np.float32), texts.scores)
    return Outlines(PolygonArray.from_list([(shape - offset) / factor for shape in texts.shapes]), texts.scores)


def shown(picture: Picture, texts: Boxes | Outlines) -> Picture:
    """A copy of the picture with what was found drawn around in red.

    Args:
        picture: `uint8 [height, width, 3]`.
        texts: In its pixels.
    """
    drawn = picture.copy()
    outlines = [np.rint(corners).astype(np.int32) for corners in texts.shapes]
    opencv().polylines(
        drawn, outlines, isClosed=True, color=(220, 30, 30), thickness=max(1, round(max(picture.shape) / 500))
    )
    return drawn
