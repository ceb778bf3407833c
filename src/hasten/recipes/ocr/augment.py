"""Random augmentation of a training image together with its polygons (Albumentations 2).

Caches keep the canonical image. Only the steps here differ from visit to visit: slight rotation, shear and scaling, a crop,
light, blur and noise. Text is not mirrored by default. All random numbers come from one generator, seeded from the sample's
own. Neither the number of workers nor resuming a run changes the results.
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
"""Smallest visible fraction of a text's area that is trained on; with less it cannot be recognized and is ignored."""


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """Strengths and probabilities of the augmentation steps.

    Attributes:
        crop: Height and width of the crop in pixels; None keeps the whole image.
        rotate_degrees: Largest rotation in either direction; 0 is off.
        shear_degrees: Largest shear in either direction; 0 is off.
        scale: Smallest and largest scale factor; (1, 1) is off.
        shift_frac: Largest shift in either direction, as a fraction of the image's sides; 0 is off.
        flip: Probability of a horizontal flip, 0 to 1; 0 is off.
        light: Probability of a change of brightness and contrast.
        blur: Probability of blur.
        noise: Probability of noise.
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
    """Augment samples, with random numbers seeded from the current state of `numpy.random`: the loop seeds it per sample.

    Args:
        settings: Strengths and probabilities.

    Raises:
        MachineError: Albumentations 2 is not installed.
    """

    def __init__(self, settings: AugmentSettings) -> None:
        self._settings = settings
        self._change = _composed(settings)

    def __call__(self, sample: Sample) -> Sample:
        """Return an augmented copy of the sample: `uint8 [height, width, 3]`, and the polygons that remain in it."""
        image, points, offsets, ignored = sample
        seed = int(np.random.randint(2**31))  # noqa: NPY002  the generator that the loop seeds for each sample
        self._change.set_random_state(np.random.default_rng(seed), random.Random(seed))  # noqa: S311
        marked = np.concatenate([points, np.zeros((1, 2), dtype=np.float32)])  # Albumentations must not get an empty list
        changed: dict[str, Any] = self._change(image=image, keypoints=marked)
        moved = np.asarray(changed["keypoints"], dtype=np.float32)[:-1, :2]
        augmented = np.ascontiguousarray(changed["image"])
        return (augmented, *in_frame(moved, offsets, ignored, augmented.shape[:2]))


def in_frame(points: Points, offsets: Offsets, ignored: Ignored, size: tuple[int, ...]) -> tuple[Points, Offsets, Ignored]:
    """Clip polygons to the image.

    Polygons outside are dropped. A clipped polygon that keeps less than `SMALLEST_KEPT` of its area is ignored.

    Args:
        points: `float32 [n, 2]`, x and y in pixels.
        offsets: `int32 [k + 1]`.
        ignored: `bool [k]`.
        size: Height and width of the image.
    """
    if not len(ignored):
        return points, offsets, ignored
    height, width = size[:2]
    low, high = np.minimum.reduceat(points, offsets[:-1]), np.maximum.reduceat(points, offsets[:-1])
    inside = (low >= 0).all(axis=1) & (high[:, 0] <= width) & (high[:, 1] <= height)
    if inside.all():
        return points, offsets, ignored
    outside = (high <= 0).any(axis=1) | (low[:, 0] >= width) | (low[:, 1] >= height)
    clipped: list[Points] = []
    flags: list[bool] = []
    for number in range(len(ignored)):
        polygon = points[offsets[number] : offsets[number + 1]]
        if outside[number]:
            continue
        if inside[number]:
            clipped.append(polygon)
            flags.append(bool(ignored[number]))
            continue
        cut = _cut(polygon, width, height)
        area = _area(cut)
        if len(cut) < 3 or area < 1:
            continue
        clipped.append(cut)
        flags.append(bool(ignored[number]) or area < SMALLEST_KEPT * _area(polygon))
    lengths = [0, *(len(polygon) for polygon in clipped)]
    together = np.concatenate(clipped) if clipped else np.zeros((0, 2), dtype=np.float32)
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
    """Clip a polygon to the image (Sutherland and Hodgman 1974, one edge of the image after another)."""
    corners: list[tuple[float, float]] = [(float(x), float(y)) for x, y in polygon]
    for axis, bound, sign in ((0, 0.0, 1.0), (0, float(width), -1.0), (1, 0.0, 1.0), (1, float(height), -1.0)):
        cut: list[tuple[float, float]] = []
        for number, here in enumerate(corners):
            before = corners[number - 1]
            depth, depth_before = sign * (here[axis] - bound), sign * (before[axis] - bound)
            if (depth >= 0) != (depth_before >= 0):
                fraction = depth_before / (depth_before - depth)
                cut.append((before[0] + fraction * (here[0] - before[0]), before[1] + fraction * (here[1] - before[1])))
            if depth >= 0:
                cut.append(here)
        corners = cut
    return np.asarray(corners, dtype=np.float32).reshape(-1, 2)


def _area(polygon: npt.NDArray[Any]) -> float:
    x, y = polygon[:, 0].astype(np.float64), polygon[:, 1].astype(np.float64)
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


@lru_cache(maxsize=1)
def augmentations() -> Any:
    """Return the module `albumentations`, with its online check for updates disabled.

    Raises:
        MachineError: The package is not installed, or older than version 2.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    module = needed("albumentations")
    if int(module.__version__.split(".")[0]) < 2:
        raise MachineError(
            f"albumentations {module.__version__} is too old for the text-detection recipe, which needs 2.x: "
            f"pip install 'hasten[recipes]'."
        )
    return module
