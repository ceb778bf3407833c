"""Detect text in one image with a trained network, and draw the result."""

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
    """Return a job's network with the weights of one of its runs.

    Args:
        job: The job.
        weights: FILE.safetensors, or the run's model.pt.

    Raises:
        HastenError: The file cannot be read, or belongs to another network.
    """
    network = job.model()
    load_weights(network, weights)
    return network.eval()


def look(model: nn.Module, image: Picture, job: OcrJob) -> tuple[list[dict[str, Any]], Picture]:
    """Return the texts as plain data, highest score first, and a copy of the image with the texts drawn."""
    texts = find_text(model, image, job)
    found = [
        {"polygon": np.round(shape, 1).tolist(), "score": round(float(score), 4)}
        for shape, score in zip(texts.shapes, texts.scores, strict=True)
    ]
    return found, shown(image, texts)


def find_text(model: nn.Module, image: Picture, job: OcrJob) -> Boxes | Outlines:
    """Detect text as in validation, in pixels of the given image: boxes, or outlines if the job is `curved`.

    Args:
        model: The job's network with trained weights; it is left in eval mode.
        image: `uint8 [height, width, 3]`, RGB, as returned by `hasten.recipes.pictures.read_picture`.
        job: Defines the size to work at and the post-processing.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    fitted, scale, place = fit(image, job.canonical_size())
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


def shown(image: Picture, texts: Boxes | Outlines) -> Picture:
    """Draw the texts in red on a copy of the image.

    Args:
        image: `uint8 [height, width, 3]`.
        texts: The texts, in pixels of the image.
    """
    drawn = image.copy()
    outlines = [np.rint(corners).astype(np.int32) for corners in texts.shapes]
    opencv().polylines(drawn, outlines, isClosed=True, color=(220, 30, 30), thickness=max(1, round(max(image.shape) / 500)))
    return drawn
