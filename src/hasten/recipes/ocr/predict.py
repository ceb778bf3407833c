"""Detect text in one image with a trained network, and draw the result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hasten.recipes.ocr.batch import MEAN, STD
from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.postprocess import Boxes, Floats, Outlines, find_texts
from hasten.recipes.pictures import Picture, decimals, fit, opencv
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


def look(
    model: nn.Module, image: Picture, job: OcrJob, min_score: float | None = None
) -> tuple[list[dict[str, Any]], Picture, int]:
    """Return the texts as plain data, a copy of the image with them drawn, and how many more have lower scores.

    Args:
        model: The job's network with trained weights.
        image: `uint8 [height, width, 3]`, RGB.
        job: Defines the size to work at and the post-processing.
        min_score: Smallest score of a text, from 0 to 1; None is the job's `box_thresh`.
    """
    least = default_min_score(job) if min_score is None else min_score
    every = find_text(model, image, job, 0.0)
    texts = _at_least(every, least)
    found = [
        {"polygon": decimals(shape), "score": round(float(score), 4)}
        for shape, score in zip(texts.shapes, texts.scores, strict=True)
    ]
    return found, shown(image, texts), len(every.scores) - len(texts.scores)


def default_min_score(job: OcrJob) -> float:
    """Return the smallest score that `look` shows unless asked otherwise."""
    return job.box_settings().box_thresh


def find_text(model: nn.Module, image: Picture, job: OcrJob, min_score: float | None = None) -> Boxes | Outlines:
    """Detect text as in validation, in pixels of the given image: boxes, or outlines if the job is `curved`.

    Corners beyond the image are moved to its edge; texts beyond it, in the padding, are dropped.

    Args:
        model: The job's network with trained weights; it is left in eval mode.
        image: `uint8 [height, width, 3]`, RGB, as returned by `hasten.recipes.pictures.read_picture`.
        job: Defines the size to work at and the post-processing.
        min_score: Smallest score of a text, from 0 to 1; None is the job's `box_thresh`.

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
    settings = job.box_settings()
    if min_score is not None:
        settings = replace(settings, box_thresh=min_score)
    texts = find_texts(torch.sigmoid(logits[0, 0].float()).cpu().numpy(), settings)
    offset, factor = np.asarray(place, dtype=np.float32), np.asarray(scale, dtype=np.float32)
    edge = np.asarray(image.shape[1::-1], dtype=np.float32)
    shapes = [np.clip((shape - offset) / factor, 0, edge).astype(np.float32) for shape in texts.shapes]
    inside = np.asarray([bool((np.ptp(shape, axis=0) > 0).all()) for shape in shapes], dtype=np.bool_)
    return _of(texts, [shape for shape, kept in zip(shapes, inside, strict=True) if kept], texts.scores[inside])


def _at_least(texts: Boxes | Outlines, min_score: float) -> Boxes | Outlines:
    kept = texts.scores >= np.float32(min_score)
    return _of(texts, [shape for shape, is_kept in zip(texts.shapes, kept, strict=True) if is_kept], texts.scores[kept])


def _of(texts: Boxes | Outlines, shapes: list[Floats], scores: Floats) -> Boxes | Outlines:
    """Return other texts of the same kind."""
    if isinstance(texts, Boxes):
        return Boxes(np.asarray(shapes, dtype=np.float32).reshape(-1, 4, 2), scores)
    return Outlines(PolygonArray.from_list(shapes), scores)


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
