"""Measure a batch of probability maps: boxes, matches, and what finding and counting them took."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hasten.core.job import Mean
from hasten.recipes.ocr.boxes import Boxes, BoxSettings, fast_boxes, naive_boxes
from hasten.recipes.ocr.hmean import Counts, fast_counts, naive_counts, outline_counts
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.outlines import Outlines, find_outlines

_NEVER_ZERO = 1e-9
"""Added to weights: a pass in which nothing at all was found has the precision 0, and is no error."""

Floats = npt.NDArray[np.float32]


def measured(
    probability: Floats, truth: Sequence[PolygonArray], polygon_ms: Sequence[float], settings: BoxSettings, *, fast: bool
) -> dict[str, Mean]:
    """The metrics of a batch.

    Args:
        probability: Of text, `float32 [batch, height, width]`.
        truth: The labels of each picture.
        polygon_ms: What the targets of each picture took, in milliseconds.
        settings: What counts as a text.
        fast: By `fast_boxes` and `fast_counts`, else by the naive ones; outlines are found and counted in one way.

    Returns:
        `hmean`, `precision` and `recall`, from 0 to 1, over all texts together; `polygon_ms`, `postprocess_ms` and
        `metric_ms`, milliseconds a picture.
    """
    counts, postprocess_s, metric_s = Counts(0, 0, 0), 0.0, 0.0
    for one, labels in zip(probability, truth, strict=True):
        start = time.perf_counter()
        texts = find_texts(one, settings, fast=fast)
        found = time.perf_counter()
        counts += _count(texts, labels, fast=fast)
        postprocess_s += found - start
        metric_s += time.perf_counter() - found
    pictures = len(truth)
    return {
        "hmean": Mean(2 * counts.matched, counts.num_truth + counts.num_found + _NEVER_ZERO),
        "precision": Mean(counts.matched, counts.num_found + _NEVER_ZERO),
        "recall": Mean(counts.matched, counts.num_truth + _NEVER_ZERO),
        "polygon_ms": Mean(float(sum(polygon_ms)), pictures),
        "postprocess_ms": Mean(1e3 * postprocess_s, pictures),
        "metric_ms": Mean(1e3 * metric_s, pictures),
    }


def find_texts(probability: Floats, settings: BoxSettings, *, fast: bool = True) -> Boxes | Outlines:
    """The texts of one picture, as boxes or as outlines.

    Args:
        probability: Of text, `float32 [height, width]`.
        settings: What counts as a text, and which of both.
        fast: Boxes by `fast_boxes`, else by `naive_boxes`.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    if settings.outlines:
        return find_outlines(probability, settings)
    return fast_boxes(probability, settings) if fast else naive_boxes(probability, settings)


def _count(texts: Boxes | Outlines, truth: PolygonArray, *, fast: bool) -> Counts:
    if isinstance(texts, Outlines):
        return outline_counts(texts.polygons, truth)
    return fast_counts(texts.corners, truth) if fast else naive_counts(texts.corners, truth)


def warm() -> None:
    """Compile the kernels, or load them from disk, before anything waits for them.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    probability = np.zeros((32, 32), dtype=np.float32)
    probability[8:20, 8:28] = 1
    truth = PolygonArray.from_list([[(6, 6), (30, 6), (30, 22), (6, 22)]])
    measured(probability[None], [truth], [0.0], BoxSettings(), fast=True)
