"""Images with text as a dataset: decoded lazily, fitted into one size, with their polygons transformed accordingly.

A raw sample names an image file. `prepared` decodes it and fits it into the canonical size, always with the same result. The
general caches (`sample_cache`, `sample_store`) can therefore keep canonical images, in memory or in memory-mapped files.
"""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from hasten.core.doing import doing
from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.regions import Item, read_regions
from hasten.recipes.pictures import PADDING, Picture, fit, read_picture

Points: TypeAlias = "npt.NDArray[np.float32]"
"""Corners of all polygons of an image, x and y in pixels, one polygon after another: `[n, 2]`."""
Offsets: TypeAlias = "npt.NDArray[np.int32]"
"""Index of each polygon's first corner, and the total number of corners at the end: `[k + 1]`."""
Ignored: TypeAlias = "npt.NDArray[np.bool_]"
"""Polygons that are neither trained on nor counted: `[k]`."""

RawSample: TypeAlias = "tuple[str, Points, Offsets, Ignored]"
"""An image file and its polygons in pixels of the file."""
Sample: TypeAlias = "tuple[Picture, Points, Offsets, Ignored]"
"""A canonical image `uint8 [height, width, 3]` and its polygons in its pixels."""

Masks: TypeAlias = "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]"
"""1 inside shrunk texts, and 1 where that counts, each `uint8 [height, width]`."""
Targets: TypeAlias = "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]"
"""The masks, and the time it took to get them in milliseconds."""
HeldOutSample: TypeAlias = "tuple[Picture, Points, Offsets, Ignored, Targets | None]"
"""A canonical image, its polygons, and its targets if available."""

MAX_HELD_OUT_BYTES = 2**30
"""Memory limit for validation images and their targets, in each process that validates."""

_LOG = logging.getLogger(__name__)


class OcrData(Dataset[RawSample]):
    """Images and their polygons as raw samples; nothing is decoded here.

    Args:
        items: The images in order.
    """

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> RawSample:
        item = self.items[index]
        return str(item.path), item.regions.points, item.regions.offsets, item.regions.ignored


class HeldOutData(Dataset[HeldOutSample]):
    """Validation images with their targets, decoded and computed in the first pass and cached in memory.

    Samples that do not fit into `max_bytes` are computed again in each pass.

    Args:
        data: The raw samples.
        size: Height and width of the canonical images.
        settings: Settings of the targets.
        max_bytes: Memory limit for images and targets.
    """

    def __init__(
        self, data: OcrData, size: tuple[int, int], settings: MapSettings, max_bytes: int = MAX_HELD_OUT_BYTES
    ) -> None:
        self._data, self._size, self._settings = data, size, settings
        self._cache: dict[int, tuple[Sample, Masks]] = {}
        self._free_bytes = max_bytes

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the cache from the copy that a worker process gets."""
        used = sum(_num_bytes(*entry) for entry in self._cache.values())
        return {**vars(self), "_cache": {}, "_free_bytes": self._free_bytes + used}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> HeldOutSample:
        start = time.perf_counter()
        if (entry := self._cache.get(index)) is None:
            sample = prepared(self._data[index], self._size)
            start = time.perf_counter()
            maps = make_maps(polygons_of(*sample[1:]), self._size, self._settings)
            entry = sample, (maps.shrink.copy(), maps.shrink_mask.copy())  # copies, so that the threshold map can be freed
            if (size := _num_bytes(*entry)) <= self._free_bytes:
                self._cache[index] = entry
                self._free_bytes -= size
        sample, masks = entry
        return (*sample, (*masks, 1e3 * (time.perf_counter() - start)))


def read_items(
    images: Path, labels: Path, max_bad_frac: float = 0.1, *, rows: str | None = None, encoding: str | None = None
) -> tuple[Item, ...]:
    """Return the usable images of a folder, and log a short summary of problems.

    Args:
        images: Folder of the images.
        labels: Folder of the labels, or a JSON file.
        max_bad_frac: Largest fraction of images that may have problems, 0 to 1.
        rows: Kind of the rows; None decides by all rows.
        encoding: Encoding of label files that are not UTF-8.

    Raises:
        DataError: The folders cannot be used, or too many images have problems.
    """
    findings = Findings()
    doing(f"reading the images in {images} and their labels")
    items = read_regions(images, labels, findings, rows=rows, encoding=encoding)
    if len(findings):
        _LOG.warning("%s", findings.words())
    findings.check(max_bad_frac)
    if not any(len(item.regions) for item in items):
        raise DataError(f"No image in {images} has labelled text: there is nothing to train on. Check {labels}.")
    return items


def split(items: tuple[Item, ...], valid_frac: float) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Split images into training and validation sets by a hash of their names, independent of their order.

    Raises:
        DataError: One set would be empty.
    """
    ranked = sorted(items, key=lambda item: hashlib.sha256(item.path.stem.encode()).digest())
    num_valid = round(valid_frac * len(items))
    if not 0 < num_valid < len(items):
        raise DataError(
            f"valid_frac {valid_frac:g} would hold out {num_valid} of {len(items)} images, but both sets need at least "
            f"one. Add images, change valid_frac, or set valid_images."
        )
    valid = {item.path for item in ranked[:num_valid]}
    return tuple(item for item in items if item.path not in valid), tuple(item for item in items if item.path in valid)


def prepared(sample: RawSample, size: tuple[int, int]) -> Sample:
    """Decode an image and fit it into `size`, centred, with its aspect ratio kept and grey padding.

    An image that turns out to be corrupt only now is skipped: it becomes a grey image that does not count, and this is
    logged.

    Args:
        sample: The image file, and its polygons in pixels of the file.
        size: Height and width of the result.
    """
    path, points, offsets, ignored = sample
    try:
        image = read_picture(Path(path))
    except BadFileError as error:
        _LOG.warning("Skipped while training: %s", error)
        return _blank(size)
    fitted, scale, (left, top) = fit(image, size)
    moved = (points * np.asarray(scale, dtype=np.float32) + np.asarray((left, top), dtype=np.float32)).astype(np.float32)
    return fitted, moved, offsets, ignored


def polygons_of(points: Points, offsets: Offsets, ignored: Ignored) -> PolygonArray:
    """Return the polygons of a sample in the form that the target maps take."""
    return PolygonArray(points=points, offsets=offsets, ignored=ignored)


def _num_bytes(sample: Sample, masks: Masks) -> int:
    return sum(part.nbytes for part in (*sample, *masks))


def _blank(size: tuple[int, int]) -> Sample:
    """Return a grey image under one ignored polygon: it contributes to neither the loss nor the metric."""
    height, width = size
    corners: Any = [(0, 0), (width, 0), (width, height), (0, height)]
    return (
        np.full((height, width, 3), PADDING, dtype=np.uint8),
        np.asarray(corners, dtype=np.float32),
        np.asarray([0, 4], dtype=np.int32),
        np.asarray([True]),
    )
