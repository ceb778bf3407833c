"""Test images: coloured squares and discs on grey noise, with YOLO labels; small, and easy to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hasten.recipes.detection.augment import Augmentation
from hasten.recipes.detection.job import DetectionJob

CLASSES = ("square", "disc")
SIDE = 96
STILL = Augmentation(
    mosaic_frac=0, scale_frac=0, shift_frac=0, mirror_frac=0, hue_frac=0, saturation_frac=0, value_frac=0
)  # fmt: skip


def write_pictures(folder: Path, count: int, seed: int = 0) -> Path:
    """Write `count` images, each with one to three objects that do not overlap, and their labels next to them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")
    for index in range(count):
        image, objects = picture_of(seed, index)
        Image.fromarray(image).save(folder / f"{index:03}.png")
        lines = [f"{kind} {x / SIDE} {y / SIDE} {side / SIDE} {side / SIDE}" for kind, x, y, side in objects]
        (folder / f"{index:03}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def picture_of(seed: int, index: int) -> tuple[Any, list[tuple[int, float, float, float]]]:
    """Return an image uint8 [SIDE, SIDE, 3], and its objects: class, centre x, centre y, side, in pixels."""
    random = np.random.default_rng((seed, index))
    image = random.integers(90, 140, (SIDE, SIDE, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    cells = random.permutation(4)[: random.integers(1, 4)]
    objects = []
    for cell in cells:
        kind, side = int(random.integers(2)), int(random.integers(16, 40))
        x0, y0 = (int(random.integers(0, 48 - side + 1)) + 48 * int(part) for part in (cell % 2, cell // 2))
        x, y = x0 + side / 2, y0 + side / 2
        if kind == 0:
            image[y0 : y0 + side, x0 : x0 + side] = (220, 40, 40)
        else:
            inside = (columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2 <= (side / 2) ** 2
            image[inside] = (30, 60, 220)
        objects.append((kind, x, y, float(side)))
    return image, objects


def job_on(folder: Path, base: type[DetectionJob] = DetectionJob, **attributes: Any) -> DetectionJob:
    """Return a small job that trains and validates on these images, by default without augmentation."""
    given = {"size": SIDE, "batch_size": 4, "num_updates": 8, "augmentation": STILL, **attributes}
    kind = type("Shapes", (base,), {"images": str(folder), "valid_images": str(folder), "__module__": __name__, **given})
    job: DetectionJob = kind()
    return job
