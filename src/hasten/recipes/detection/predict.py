"""Detect objects in one image with a trained detector, and draw the detections."""

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
from hasten.recipes.pictures import Picture, decimals, letterbox, opencv

MIN_SCORE = 0.25
"""Boxes with lower scores are not shown unless asked for."""
_GOLDEN = 0.618034
"""Golden ratio: hue steps of this size keep the colours of any number of classes distinct."""


def trained(job: DetectionJob, weights: Path) -> nn.Module:
    """Return a job's detector with the weights of one of its runs, using the run's average if it has one.

    Args:
        job: The job; its labels define the classes.
        weights: FILE.safetensors, or the run's model.pt.

    Raises:
        HastenError: The labels or the file cannot be read, or the file belongs to another detector.
    """
    detector = Detector(len(job.classes), shape_named(job.model_size))
    load_weights(detector, weights)
    return detector.eval()


def find_objects(
    model: nn.Module, image: Picture, job: DetectionJob, min_score: float = MIN_SCORE
) -> npt.NDArray[np.float32]:
    """Detect objects as in validation, in pixels of the given image.

    Args:
        model: The result of `trained`, or the job's own model; it is left in eval mode.
        image: `uint8 [height, width, 3]`, RGB, as returned by `hasten.recipes.pictures.read_picture`.
        job: Defines the size to work at.
        min_score: Smallest score of a box, from 0 to 1.

    Returns:
        float32 `[n, 6]`: x1, y1, x2, y2, score, class; highest score first.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    square, scale, (left, top) = letterbox(image, job.size)
    device = next(model.parameters()).device
    images = torch.from_numpy(square)[None].permute(0, 3, 1, 2).to(device, torch.float32) / 255
    model.eval()
    with torch.inference_mode():
        output: Output = model(images)
        if output.boxes is None or output.scores is None:
            raise JobError(f"{type(model).__name__} returns no boxes in eval mode: use the model that `trained` returns.")
        settings = replace(job.suppression, min_score=min_score)
        (found,) = suppress(candidates(output.boxes, output.scores, settings), settings)
    height, width = image.shape[:2]
    found[:, :4] = (found[:, :4] - np.asarray([left, top] * 2, dtype=np.float32)) / np.float32(scale)
    found[:, :4] = np.clip(found[:, :4], 0, np.asarray([width, height] * 2, dtype=np.float32))
    return found


def look(
    model: nn.Module, image: Picture, job: DetectionJob, min_score: float | None = None
) -> tuple[list[dict[str, Any]], Picture, int]:
    """Return the detections as plain data, a copy of the image with them drawn, and how many more have lower scores.

    Args:
        model: The result of `trained`.
        image: `uint8 [height, width, 3]`, RGB.
        job: Defines the size to work at.
        min_score: Smallest score of a detection, from 0 to 1; None is `MIN_SCORE`.
    """
    least = default_min_score(job) if min_score is None else min_score
    every = find_objects(model, image, job, min(least, job.suppression.min_score))
    objects = every[every[:, 4] >= np.float32(least)]
    found = [
        {"class": job.classes[int(row[5])], "score": round(float(row[4]), 4), "box": decimals(row[:4])} for row in objects
    ]
    return found, shown(image, objects, job.classes), len(every) - len(objects)


def default_min_score(_job: DetectionJob) -> float:
    """Return the smallest score that `look` shows unless asked otherwise."""
    return MIN_SCORE


def shown(image: Picture, objects: npt.NDArray[np.float32], classes: Sequence[str]) -> Picture:
    """Draw boxes and class names on a copy of the image.

    Args:
        image: `uint8 [height, width, 3]`.
        objects: The result of `find_objects` for this image.
        classes: Class names.
    """
    cv2, drawn = opencv(), image.copy()
    thickness = max(1, round(max(image.shape) / 400))
    font_scale = max(0.35, max(image.shape) / 1200)
    for row in objects[::-1]:  # the highest score is drawn last, on top
        left, top, right, bottom = np.rint(row[:4]).astype(int).tolist()
        colour = _colour(int(row[5]))
        cv2.rectangle(drawn, (left, top), (right, bottom), colour, thickness)
        label = f"{classes[int(row[5])]} {row[4]:.2f}".encode("ascii", "replace").decode()  # OpenCV draws only ASCII
        (width, height), baseline = cv2.getTextSize(label, cv2.FONT_HERSHEY_SIMPLEX, font_scale, thickness)
        label_bottom = max(top, height + baseline)
        cv2.rectangle(drawn, (left, label_bottom - height - baseline), (left + width, label_bottom), colour, -1)
        cv2.putText(
            drawn,
            label,
            (left, label_bottom - baseline // 2),
            cv2.FONT_HERSHEY_SIMPLEX,
            font_scale,
            (255, 255, 255),
            thickness,
            cv2.LINE_AA,
        )
    return drawn


def _colour(number: int) -> tuple[int, int, int]:
    """Return a class colour, dark enough for white text."""
    red, green, blue = colorsys.hsv_to_rgb((number * _GOLDEN) % 1.0, 0.9, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)
