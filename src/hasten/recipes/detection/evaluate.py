"""Compute mean average precision as defined by COCO, over all images of the validation set together.

Source: https://cocodataset.org/#detection-eval; computed by faster-coco-eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import needed

Floats = npt.NDArray[np.float32]
Judged = tuple[Floats, Floats]
"""For one image: detections `[n, 6]` (x1, y1, x2, y2, score, class) and objects `[m, 5]` (class, x1, y1, x2, y2)."""


def mean_average_precision(images: Sequence[Judged], num_classes: int) -> dict[str, float]:
    """Return `map50` and `map` (the mean over overlaps of 0.50, 0.55 ... 0.95), each from 0 to 1.

    A class without objects does not count. If nothing was detected, or if there are no objects at all, both are 0.

    Args:
        images: Detections and objects of each image.
        num_classes: Number of classes, counted from 0.

    Raises:
        MachineError: faster-coco-eval is not installed.
    """
    coco = needed("faster_coco_eval")
    objects, detections = _annotations(images)
    if not objects or not detections:
        return {"map50": 0.0, "map": 0.0}
    truth = coco.COCO(
        {
            "images": [{"id": number} for number in range(1, len(images) + 1)],
            "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
            "annotations": objects,
        }
    )
    evaluation = coco.COCOeval_faster(truth, truth.loadRes(detections), iouType="bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    # [overlaps, recalls, classes, areas, detection limits]; "all areas" is the first, the largest limit the last.
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, 0, -1]
    has_objects = precision > -1  # -1 marks a class without objects
    return {"map50": float(precision[0][has_objects[0]].mean()), "map": float(precision[has_objects].mean())}


def _annotations(images: Sequence[Judged]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return objects and detections in COCO's form. Ids start at 1: COCO uses 0 for "none"."""
    objects: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    for number, (detected, true) in enumerate(images, 1):
        for kind, *corners in true.tolist():
            box = _box(corners)
            objects.append(
                {
                    "id": len(objects) + 1, "image_id": number, "category_id": int(kind), "bbox": box,
                    "area": box[2] * box[3], "iscrowd": 0,
                }
            )  # fmt: skip
        for *corners, score, kind in detected.tolist():
            detections.append({"image_id": number, "category_id": int(kind), "bbox": _box(corners), "score": score})
    return objects, detections


def _box(corners: Sequence[float]) -> list[float]:
    x1, y1, x2, y2 = corners
    return [x1, y1, x2 - x1, y2 - y1]
