"""Random changes of a training picture, its polygons moved along (Albumentations 2).

The canonical picture is what the caches keep; only what is done here differs from visit to visit: a little turning, shearing
and scaling, a crop, light, blur and noise. Text is not mirrored unless asked for. Every random number is drawn from one
generator, seeded from the sample's own, so that neither the number of workers nor a resumed run changes what is seen.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import MachineError
from hasten.recipes.needed import needed
from hasten.recipes.ocr.data import Ignored, Offsets, Points, Sample
from hasten.recipes.pictures import PADDING, opencv

SMALLEST_KEPT = 0.5
"""A text of which less than this share of its area is still in the picture is ignored: what is left cannot be told."""


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """How far pictures are changed.

    Attributes:
        crop: Height and width of what is cut out, in pixels; None keeps the whole picture.
        rotate_degrees: Largest turn to either side; 0 is off.
        shear_degrees: Largest shearing to either side; 0 is off.
        scale: Smallest and largest enlargement; (1, 1) is off.
        shift_frac: Largest move to either side, as a share of the picture's sides; 0 is off.
        flip: How often a picture is mirrored, 0 to 1; 0 is off.
        light: How often brightness and contrast change.
        blur: How often a picture is blurred.
        noise: How often noise is added.
    """

    crop: tuple[int, int] | None = None
    rotate_degrees: float = 4.0
    shear_degrees: float = 3.0
    scale: tuple[float, float] = (0.8, 1.25)
    shift_frac: float = 0.05
    flip: float = 0.0
    light: float = 0.5
    blur: float = 0.2
    noise: float = 0.2


class Augment:
    """Random changes of samples, drawn from `numpy.random` as it stands: the loop seeds it for each sample.

    Args:
        settings: How far pictures are changed.

    Raises:
        MachineError: Albumentations 2 is not installed.
    """

    def __init__(self, settings: AugmentSettings) -> None:
        self._settings = settings
        self._change = _composed(settings)

    def __call__(self, sample: Sample) -> Sample:
        """A changed copy of the sample: `uint8 [height, width, 3]`, and the polygons that are left in it."""
        picture, points, offsets, ignored = sample
        seed = int(np.random.randint(2**31))  # noqa: NPY002  the generator that the loop seeds for each sample
        self._change.set_random_state(np.random.default_rng(seed), random.Random(seed))  # noqa: S311
        marked = np.concatenate([points, np.zeros((1, 2), dtype=np.float32)])  # Albumentations never sees an empty list
        changed: dict[str, Any] = self._change(image=picture, keypoints=marked)
        moved = np.asarray(changed["keypoints"], dtype=np.float32)[:-1, :2]
        seen = np.ascontiguousarray(changed["image"])
        return (seen, *in_frame(moved, offsets, ignored, seen.shape[:2]))


def in_frame(points: Points, offsets: Offsets, ignored: Ignored, size: tuple[int, ...]) -> tuple[Points, Offsets, Ignored]:
    """Cut polygons off at the edges of a picture.

    Those outside are left out; of those that are cut, what keeps less than `SMALLEST_KEPT` of its area is ignored.

    Args:
        points: `float32 [n, 2]`, x and y in pixels.
        offsets: `int32 [k + 1]`.
        ignored: `bool [k]`.
        size: Height and width of the picture.
    """
    if not len(ignored):
        return points, offsets, ignored
    height, width = size[:2]
    low, high = np.minimum.reduceat(points, offsets[:-1]), np.maximum.reduceat(points, offsets[:-1])
    inside = (low >= 0).all(axis=1) & (high[:, 0] <= width) & (high[:, 1] <= height)
    if inside.all():
        return points, offsets, ignored
    outside = (high <= 0).any(axis=1) | (low[:, 0] >= width) | (low[:, 1] >= height)
    kept: list[Points] = []
    flags: list[bool] = []
    for number in range(len(ignored)):
        polygon = points[offsets[number] : offsets[number + 1]]
        if outside[number]:
            continue
        if inside[number]:
            kept.append(polygon)
            flags.append(bool(ignored[number]))
            continue
        cut = _cut(polygon, width, height)
        area = _area(cut)
        if len(cut) < 3 or area < 1:
            continue
        kept.append(cut)
        flags.append(bool(ignored[number]) or area < SMALLEST_KEPT * _area(polygon))
    lengths = [0, *(len(polygon) for polygon in kept)]
    together = np.concatenate(kept) if kept else np.zeros((0, 2), dtype=np.float32)
    return together, np.cumsum(lengths, dtype=np.int32), np.asarray(flags, dtype=np.bool_)


def _composed(settings: AugmentSettings) -> Any:
    a, cv2 = augmentations(), opencv()
    turn, shear, shift = settings.rotate_degrees, settings.shear_degrees, settings.shift_frac
    changes = [
        a.Affine(
            scale=settings.scale,
            rotate=(-turn, turn),
            shear=(-shear, shear),
            translate_percent=(-shift, shift),
            balanced_scale=settings.scale[0] < 1 < settings.scale[1],
            border_mode=cv2.BORDER_CONSTANT,
            fill=PADDING,
            p=1.0,
        )
    ]
    if settings.crop is not None:
        height, width = settings.crop
        changes.append(
            a.RandomCrop(
                height=height, width=width, pad_if_needed=True, border_mode=cv2.BORDER_CONSTANT, fill=PADDING, p=1.0
            )
        )
    if settings.flip > 0:
        changes.append(a.HorizontalFlip(p=settings.flip))
    if settings.light > 0:
        changes.append(a.RandomBrightnessContrast(brightness_limit=0.2, contrast_limit=0.2, p=settings.light))
    if settings.blur > 0:
        kinds = [a.GaussianBlur(blur_limit=(3, 5), p=1.0), a.MotionBlur(blur_limit=(3, 5), p=1.0)]
        changes.append(a.OneOf(kinds, p=settings.blur))
    if settings.noise > 0:
        changes.append(a.GaussNoise(std_range=(0.01, 0.05), per_channel=False, p=settings.noise))
    points = a.KeypointParams(format="xy", remove_invisible=False)
    return a.Compose(changes, keypoint_params=points)


def _cut(polygon: Points, width: int, height: int) -> Points:
    """The part of a polygon within a picture (Sutherland and Hodgman 1974, one edge of the picture after another)."""
    corners: list[tuple[float, float]] = [(float(x), float(y)) for x, y in polygon]
    for axis, bound, sign in ((0, 0.0, 1.0), (0, float(width), -1.0), (1, 0.0, 1.0), (1, float(height), -1.0)):
        cut: list[tuple[float, float]] = []
        for number, here in enumerate(corners):
            before = corners[number - 1]
            depth, depth_before = sign * (here[axis] - bound), sign * (before[axis] - bound)
            if (depth >= 0) != (depth_before >= 0):
                share = depth_before / (depth_before - depth)
                cut.append((before[0] + share * (here[0] - before[0]), before[1] + share * (here[1] - before[1])))
            if depth >= 0:
                cut.append(here)
        corners = cut
    return np.asarray(corners, dtype=np.float32).reshape(-1, 2)


def _area(polygon: npt.NDArray[Any]) -> float:
    x, y = polygon[:, 0].astype(np.float64), polygon[:, 1].astype(np.float64)
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


@lru_cache(maxsize=1)
def augmentations() -> Any:
    """The module `albumentations`, told not to ask the network for a newer version of itself.

    Raises:
        MachineError: It is not installed, or older than 2.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    found = needed("albumentations")
    if int(found.__version__.split(".")[0]) < 2:
        raise MachineError(
            f"albumentations {found.__version__} is too old for the text-detection recipe, which needs 2.x: "
            f"pip install 'hasten[recipes]'."
        )
    return found
