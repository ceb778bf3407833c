"""How good detections are: mean average precision as COCO defines it, over all pictures of a held-out set together.

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
"""Of one picture: detections `[n, 6]` (x1, y1, x2, y2, score, class) and objects `[m, 5]` (class, x1, y1, x2, y2)."""


def mean_average_precision(pictures: Sequence[Judged], num_classes: int) -> dict[str, float]:
    """Give `map50` and `map` (the mean over overlaps of 0.50, 0.55 ... 0.95), each from 0 to 1.

    A class that no picture holds does not count. Where nothing was detected, and also where the pictures hold no object at
    all, both are 0.

    Args:
        pictures: Detections and objects of each.
        num_classes: How many there are; classes count from 0.

    Raises:
        MachineError: faster-coco-eval is not installed.
    """
    judging = needed("faster_coco_eval")
    objects, detections = _annotations(pictures)
    if not objects or not detections:
        return {"map50": 0.0, "map": 0.0}
    truth = judging.COCO(
        {
            "images": [{"id": number} for number in range(1, len(pictures) + 1)],
            "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
            "annotations": objects,
        }
    )
    judge = judging.COCOeval_faster(truth, truth.loadRes(detections), iouType="bbox")
    judge.evaluate()
    judge.accumulate()
    # [overlaps, recalls, classes, areas, numbers of detections]; all areas come first, the most detections last.
    precision = np.asarray(judge.eval["precision"])[:, :, :, 0, -1]
    held = precision > -1  # -1 stands for a class that no picture holds
    return {"map50": float(precision[0][held[0]].mean()), "map": float(precision[held].mean())}


def _annotations(pictures: Sequence[Judged]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Objects and detections as COCO writes them down. Numbers count from 1: 0 means "none" there."""
    objects: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    for number, (found, true) in enumerate(pictures, 1):
        for kind, *corners in true.tolist():
            box = _box(corners)
            objects.append(
                {
                    "id": len(objects) + 1, "image_id": number, "category_id": int(kind), "bbox": box,
                    "area": box[2] * box[3], "iscrowd": 0,
                }
            )  # fmt: skip
        for *corners, score, kind in found.tolist():
            detections.append({"image_id": number, "category_id": int(kind), "bbox": _box(corners), "score": score})
    return objects, detections


def _box(corners: Sequence[float]) -> list[float]:
    x1, y1, x2, y2 = corners
    return [x1, y1, x2 - x1, y2 - y1]
