"""Find objects in one picture with a trained detector, and draw what was found."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hasten.core.errors import JobError
from hasten.recipes.detection.decode import candidates, suppress
from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.model import Detector, Output, shape_named
from hasten.recipes.detection.weights import load_weights
from hasten.recipes.pictures import Picture, letterbox, opencv

MIN_SCORE = 0.25
"""Boxes below it are not shown."""
_GOLDEN = 0.618034
"""Hues this far apart, round the circle, stay apart for any number of classes."""


def trained(job: DetectionJob, weights: Path) -> nn.Module:
    """The detector of a job with the weights of a run of it: their average, where the run kept one.

    Args:
        job: The job; its labels name the classes.
        weights: FILE.safetensors, or the run's model.pt.

    Raises:
        HastenError: The labels or the file cannot be read, or it holds another detector.
    """
    detector = Detector(len(job.classes), shape_named(job.model_size))
    load_weights(detector, weights)
    return detector.eval()


def find_objects(
    model: nn.Module, picture: Picture, job: DetectionJob, min_score: float = MIN_SCORE
) -> npt.NDArray[np.float32]:
    """Find objects as the job would on a held-out picture, in the picture's own pixels.

    Args:
        model: What `trained` gave, or the job's own model; it is left in eval mode.
        picture: `uint8 [height, width, 3]`, RGB, as `hasten.recipes.pictures.read_picture` gives it.
        job: Says the size to work at.
        min_score: The least score of a box, from 0 to 1.

    Returns:
        float32 `[n, 6]`: x1, y1, x2, y2, score, class; the surest first.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    square, scale, (left, top) = letterbox(picture, job.size)
    device = next(model.parameters()).device
    images = torch.from_numpy(square)[None].permute(0, 3, 1, 2).to(device, torch.float32) / 255
    model.eval()
    with torch.inference_mode():
        output: Output = model(images)
        if output.boxes is None or output.scores is None:
            raise JobError(f"{type(model).__name__} gives no boxes of held-out pictures: take what `trained` gives.")
        settings = replace(job.suppression, min_score=min_score)
        (found,) = suppress(candidates(output.boxes, output.scores, settings), settings)
    height, width = picture.shape[:2]
    found[:, :4] = (found[:, :4] - np.asarray([left, top] * 2, dtype=np.float32)) / np.float32(scale)
    found[:, :4] = np.clip(found[:, :4], 0, np.asarray([width, height] * 2, dtype=np.float32))
    return found


def look(model: nn.Module, picture: Picture, job: DetectionJob) -> tuple[list[dict[str, Any]], Picture]:
    """What was found, the surest first, as plain data; and the picture with it drawn in."""
    objects = find_objects(model, picture, job)
    found = [
        {"class": job.classes[int(row[5])], "score": round(float(row[4]), 4), "box": np.round(row[:4], 1).tolist()}
        for row in objects
    ]
    return found, shown(picture, objects, job.classes)


def shown(picture: Picture, objects: npt.NDArray[np.float32], classes: Sequence[str]) -> Picture:
    """A copy of the picture with the boxes and their classes.

    Args:
        picture: `uint8 [height, width, 3]`.
        objects: What `find_objects` gave for it.
        classes: Their names.
    """
    cv2, drawn = opencv(), picture.copy()
    thick = max(1, round(max(picture.shape) / 400))
    letters = max(0.35, max(picture.shape) / 1200)
    for row in objects[::-1]:  # the surest on top
        left, top, right, bottom = np.rint(row[:4]).astype(int).tolist()
        colour = _colour(int(row[5]))
        cv2.rectangle(drawn, (left, top), (right, bottom), colour, thick)
        words = f"{classes[int(row[5])]} {row[4]:.2f}".encode("ascii", "replace").decode()  # OpenCV draws no others
        (width, height), below = cv2.getTextSize(words, cv2.FONT_HERSHEY_SIMPLEX, letters, thick)
        foot = max(top, height + below)
        cv2.rectangle(drawn, (left, foot - height - below), (left + width, foot), colour, -1)
        cv2.putText(
            drawn, words, (left, foot - below // 2), cv2.FONT_HERSHEY_SIMPLEX, letters, (255, 255, 255), thick, cv2.LINE_AA
        )
    return drawn


def _colour(number: int) -> tuple[int, int, int]:
    """A colour of a class, dark enough for white letters."""
    red, green, blue = colorsys.hsv_to_rgb((number * _GOLDEN) % 1.0, 0.9, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)
