"""Pictures with text as a dataset: read late, fitted once into one size, with their polygons moved along.

A raw sample names a picture file; `prepared` decodes it and fits it into the canonical size, always to the same result. So
the general caches (`sample_cache`, `sample_store`) can keep canonical pictures, in memory or in memory-mapped files.
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

from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.regions import Item, read_regions
from hasten.recipes.pictures import PADDING, Picture, fit, read_picture

Points: TypeAlias = "npt.NDArray[np.float32]"
"""Corners of all polygons of a picture, x and y in pixels, one polygon after another: `[n, 2]`."""
Offsets: TypeAlias = "npt.NDArray[np.int32]"
"""Where each polygon begins among the corners, and where the last one ends: `[k + 1]`."""
Ignored: TypeAlias = "npt.NDArray[np.bool_]"
"""Which polygons are neither learned nor counted: `[k]`."""

RawSample: TypeAlias = "tuple[str, Points, Offsets, Ignored]"
"""A picture file and its polygons in the file's pixels."""
Sample: TypeAlias = "tuple[Picture, Points, Offsets, Ignored]"
"""A canonical picture `uint8 [height, width, 3]` and its polygons in its pixels."""

Masks: TypeAlias = "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]"
"""Where shrunk texts are, and where that counts, each `uint8 [height, width]`."""
Targets: TypeAlias = "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]"
"""Masks, and the milliseconds it took to have them."""
HeldOutSample: TypeAlias = "tuple[Picture, Points, Offsets, Ignored, Targets | None]"
"""A canonical picture, its polygons, and its targets, where they are at hand."""

MAX_HELD_OUT_BYTES = 2**30
"""Most memory for held-out pictures and their targets, in each process that validates."""

_LOG = logging.getLogger(__name__)


class OcrData(Dataset[RawSample]):
    """Pictures and their polygons as raw samples; nothing is decoded here.

    Args:
        items: The pictures, in order.
    """

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> RawSample:
        item = self.items[index]
        return str(item.path), item.regions.points, item.regions.offsets, item.regions.ignored


class HeldOutData(Dataset[HeldOutSample]):
    """Held-out pictures with their targets, decoded and drawn in the first pass and kept in memory.

    What does not fit into `max_bytes` is made anew in each pass.

    Args:
        data: The raw samples.
        size: Height and width of the canonical pictures.
        settings: How targets are made.
        max_bytes: Most memory that pictures and targets may take.
    """

    def __init__(
        self, data: OcrData, size: tuple[int, int], settings: MapSettings, max_bytes: int = MAX_HELD_OUT_BYTES
    ) -> None:
        self._data, self._size, self._settings = data, size, settings
        self._cache: dict[int, tuple[Sample, Masks]] = {}
        self._free_bytes = max_bytes

    def __getstate__(self) -> dict[str, Any]:
        """Leave the cache out of what a worker process gets."""
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
            entry = sample, (maps.shrink.copy(), maps.shrink_mask.copy())  # copies, so that the threshold map is freed
            if (size := _num_bytes(*entry)) <= self._free_bytes:
                self._cache[index] = entry
                self._free_bytes -= size
        sample, masks = entry
        return (*sample, (*masks, 1e3 * (time.perf_counter() - start)))


def read_items(images: Path, labels: Path, max_bad_frac: float = 0.1) -> tuple[Item, ...]:
    """The usable pictures of a folder; what is wrong is said in a few lines of the log.

    Args:
        images: The folder of the pictures.
        labels: The folder of the labels, or a COCO-Text file.
        max_bad_frac: The largest share of pictures that may have faults, 0 to 1.

    Raises:
        DataError: The folders cannot be used, or too many pictures have faults.
    """
    findings = Findings()
    items = read_regions(images, labels, findings)
    if len(findings):
        _LOG.warning("%s", findings.words())
    findings.check(len(items) + findings.counts()["picture"], max_bad_frac)
    if not any(len(item.regions) for item in items):
        raise DataError(f"No picture of {images} has a labelled text: there is nothing to learn. Look at {labels}.")
    return items


def split(items: tuple[Item, ...], valid_frac: float) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Pictures to learn from and to hold out, told apart by their names, whatever their order.

    Raises:
        DataError: One side would be empty.
    """
    ranked = sorted(items, key=lambda item: hashlib.sha256(item.path.stem.encode()).digest())
    num_valid = round(valid_frac * len(items))
    if not 0 < num_valid < len(items):
        raise DataError(
            f"Of {len(items)} pictures, {valid_frac:g} are {num_valid} to hold out: neither side may be empty. "
            f"Give more pictures, another valid_frac, or valid_images of their own."
        )
    held = {item.path for item in ranked[:num_valid]}
    return tuple(item for item in items if item.path not in held), tuple(item for item in items if item.path in held)


def prepared(sample: RawSample, size: tuple[int, int]) -> Sample:
    """Decode a picture and fit it into `size`, its sides in proportion, in the middle, with grey beside it.

    A picture that turns out broken only now is left out: it becomes a grey one of which nothing counts, and the log says so.

    Args:
        sample: The picture file, and its polygons in the file's pixels.
        size: Height and width to give.
    """
    path, points, offsets, ignored = sample
    try:
        picture = read_picture(Path(path))
    except BadFileError as error:
        _LOG.warning("Left out while training: %s", error)
        return _nothing(size)
    fitted, scale, (left, top) = fit(picture, size)
    moved = (points * np.asarray(scale, dtype=np.float32) + np.asarray((left, top), dtype=np.float32)).astype(np.float32)
    return fitted, moved, offsets, ignored


def polygons_of(points: Points, offsets: Offsets, ignored: Ignored) -> PolygonArray:
    """The polygons of a sample, as the target maps take them."""
    return PolygonArray(points=points, offsets=offsets, ignored=ignored)


def _num_bytes(sample: Sample, masks: Masks) -> int:
    return sum(part.nbytes for part in (*sample, *masks))


def _nothing(size: tuple[int, int]) -> Sample:
    """A grey picture under one ignored polygon: it adds nothing to a loss, and nothing to a metric."""
    height, width = size
    corners: Any = [(0, 0), (width, 0), (width, height), (0, height)]
    return (
        np.full((height, width, 3), PADDING, dtype=np.uint8),
        np.asarray(corners, dtype=np.float32),
        np.asarray([0, 4], dtype=np.int32),
        np.asarray([True]),
    )
