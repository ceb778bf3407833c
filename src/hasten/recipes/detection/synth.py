"""Generate images of banknotes with their boxes, for users without their own data.

The notes are fictional. There are six denominations, each with its own colour, guilloche (fine curves that make notes hard
to copy), portrait, number and serial numbers. They are rotated, seen at an angle, and overlap on cluttered tables, with
uneven light, defocus and camera noise. An image is a pure function of (seed, index, size).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.core.files import write_atomically
from hasten.recipes.detection.synth_scene import finish, table
from hasten.recipes.drawn import drawn_once
from hasten.recipes.pictures import Picture, opencv

Colour: TypeAlias = tuple[int, int, int]
Drawn: TypeAlias = tuple[Picture, npt.NDArray[np.float32], npt.NDArray[np.int64]]

NOTE_HEIGHT, NOTE_WIDTH = 180, 380
"""Size of a note in pixels before it is placed."""
MIN_SEEN_FRAC = 0.25
"""Smallest visible fraction of a labelled note; with less, covered or outside the image, it could not be identified."""
_DRAWING = 1
"""Version of the generator. Increase it whenever images change, so that cached ones are not reused."""

THREADS = 4
"""Number of images generated in parallel; most of the work runs outside of the GIL."""


@dataclass(frozen=True)
class Denomination:
    """Appearance of one denomination.

    Attributes:
        number: The printed number, which is also the class name.
        paper: Paper colour, RGB.
        ink: Colour of lines and numbers, RGB.
        petals: Number of petals of the guilloche.
        portrait_right: Whether the portrait is on the right.
        width_frac: Width as a fraction of the widest note's.
    """

    number: int
    paper: Colour
    ink: Colour
    petals: int
    portrait_right: bool
    width_frac: float


DENOMINATIONS = (
    Denomination(5, (205, 208, 196), (94, 104, 96), 5, portrait_right=True, width_frac=0.84),
    Denomination(10, (236, 204, 196), (170, 54, 60), 7, portrait_right=False, width_frac=0.88),
    Denomination(20, (196, 214, 236), (36, 76, 158), 9, portrait_right=True, width_frac=0.92),
    Denomination(50, (240, 218, 178), (190, 104, 22), 6, portrait_right=False, width_frac=0.95),
    Denomination(100, (200, 228, 198), (32, 118, 60), 11, portrait_right=True, width_frac=0.98),
    Denomination(200, (228, 204, 232), (116, 46, 138), 8, portrait_right=False, width_frac=1.0),
)

CLASSES = tuple(str(kind.number) for kind in DENOMINATIONS)
"""The class names in order."""


def draw(seed: int, index: int, size: int = 640) -> Drawn:
    """Generate one image.

    Args:
        seed: Seed of the set.
        index: Index of the image in the set.
        size: Side of the square image in pixels, at least 64.

    Returns:
        The image uint8 [size, size, 3]; the boxes of the identifiable notes, float32 [n, 4]: left, top, right, bottom in
        pixels, each around the visible part of its note; and their classes int64 [n].

    Raises:
        ValueError: The size is too small.
        MachineError: OpenCV is not installed.
    """
    if size < 64:
        raise ValueError(f"size must be at least 64 pixels, not {size}: notes would be unrecognizable")
    rng = np.random.default_rng((seed, index))
    image = table(rng, size)
    owner = np.full((size, size), -1, np.int16)  # index of the topmost note at each pixel
    kinds: list[int] = []
    areas: list[float] = []
    for at in range(int(rng.choice([0, 1, 2, 3, 4, 5, 6], p=[0.03, 0.2, 0.25, 0.22, 0.15, 0.1, 0.05]))):
        kind = int(rng.integers(len(DENOMINATIONS)))
        kinds.append(kind)
        areas.append(_lay(image, owner, at, kind, rng))
    boxes: list[tuple[int, ...]] = []
    classes: list[int] = []
    for at, kind in enumerate(kinds):
        visible = owner == at
        if visible.sum() < max(MIN_SEEN_FRAC * areas[at], 24.0):
            continue
        rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
        boxes.append((int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
        classes.append(kind)
    made = finish(image, rng)
    return made, np.array(boxes, np.float32).reshape(-1, 4), np.array(classes, np.int64)


def write(
    folder: Path,
    count: int,
    seed: int = 0,
    labels: Literal["yolo", "coco"] = "yolo",
    size: int = 640,
    *,
    told: Callable[[], object] = lambda: None,
) -> None:
    """Generate images in `folder/images`, as JPEG, with their labels.

    Args:
        folder: Created if missing; its `images` must be missing or empty.
        count: Number of images.
        seed: Seed of the set.
        labels: `yolo` writes `labels/*.txt` and `labels/classes.txt`; `coco` writes `labels/labels.json`.
        size: Side of the square images in pixels.
        told: Called after each image.

    Raises:
        DataError: The folder already has images.
        ValueError: A number is out of range or the format is unknown.
        MachineError: OpenCV is not installed.
    """
    folder = Path(folder)
    if count < 1 or labels not in {"yolo", "coco"}:
        raise ValueError(f"count must be at least 1 and labels 'yolo' or 'coco', not {count} and {labels!r}")
    images, texts = folder / "images", folder / "labels"
    if images.is_dir() and any(images.iterdir()):
        raise DataError(f"{images} is not empty: name another folder, or remove it.")
    images.mkdir(parents=True, exist_ok=True)
    texts.mkdir(exist_ok=True)
    content: dict[str, list[Any]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": at + 1, "name": name} for at, name in enumerate(CLASSES)],
    }

    def one(index: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        cv2 = opencv()
        image, boxes, classes = draw(seed, index, size)
        _, encoded = cv2.imencode(".jpg", np.ascontiguousarray(image[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 90])
        (images / f"{index:06d}.jpg").write_bytes(encoded.tobytes())
        return boxes, classes

    with ThreadPoolExecutor(THREADS) as pool:
        for index, (boxes, classes) in enumerate(pool.map(one, range(count))):
            if labels == "yolo":
                (texts / f"{index:06d}.txt").write_text(_yolo(boxes, classes, size), encoding="utf-8")
            else:
                content["images"].append({"id": index, "file_name": f"{index:06d}.jpg", "width": size, "height": size})
                content["annotations"] += _coco(boxes, classes, index, len(content["annotations"]))
            told()
    if labels == "yolo":
        write_atomically(texts / "classes.txt", "".join(f"{name}\n" for name in CLASSES))
    else:
        write_atomically(texts / "labels.json", json.dumps(content))


def drawn_pictures(count: int, seed: int = 0) -> Path:
    """Return a folder of generated images with `images` and `labels` (YOLO) in it, generated once on this machine.

    Raises:
        MachineError: The folder cannot be written.
    """
    return drawn_once(f"detection-{_DRAWING}-{seed}-{count}", lambda folder: write(folder, count, seed))


def _yolo(boxes: npt.NDArray[np.float32], classes: npt.NDArray[np.int64], size: int) -> str:
    lines = []
    for (left, top, right, bottom), kind in zip(boxes.tolist(), classes.tolist(), strict=True):
        middle = f"{(left + right) / 2 / size:.6f} {(top + bottom) / 2 / size:.6f}"
        lines.append(f"{kind} {middle} {(right - left) / size:.6f} {(bottom - top) / size:.6f}\n")
    return "".join(lines)


def _coco(boxes: npt.NDArray[np.float32], classes: npt.NDArray[np.int64], image_id: int, first: int) -> list[dict[str, Any]]:
    """Return the annotations of one image, numbered from `first`."""
    made = []
    for at, ((left, top, right, bottom), kind) in enumerate(zip(boxes.tolist(), classes.tolist(), strict=True)):
        box = [left, top, right - left, bottom - top]
        known = {"id": first + at, "image_id": image_id, "category_id": kind + 1}
        made.append({**known, "bbox": box, "area": box[2] * box[3], "iscrowd": 0})
    return made


def _lay(image: Picture, owner: npt.NDArray[np.int16], at: int, kind: int, rng: np.random.Generator) -> float:
    """Place a note in the image, above earlier ones; return the number of pixels it would cover if nothing hid it."""
    cv2 = opencv()
    size = image.shape[0]
    note = _worn(_note(kind, int(rng.integers(4))), DENOMINATIONS[kind], rng)
    height, width = note.shape[:2]
    scale = size / 640 * rng.uniform(0.45, 1.15)
    corners = np.array([[-width, -height], [width, -height], [width, height], [-width, height]], np.float64) / 2 * scale
    corners *= 1 + rng.uniform(-0.12, 0.12, (4, 1))  # perspective
    corners += rng.uniform(-0.04, 0.04, (4, 2)) * height * scale
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    placed = (corners @ turn.T + rng.uniform(0.08, 0.92, 2) * size).astype(np.float32)
    area = float(abs(cv2.contourArea(placed.reshape(-1, 1, 2))))
    margin = size // 40 + 2  # for the shadow
    left, top = np.clip(np.floor(placed.min(axis=0)).astype(int) - margin, 0, size).tolist()
    right, bottom = np.clip(np.ceil(placed.max(axis=0)).astype(int) + margin, 0, size).tolist()
    if right <= left or bottom <= top:
        return area
    flat = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(flat, placed - np.array([left, top], np.float32))
    if scale < 0.8:  # the warp samples single pixels: without a blur, the fine lines would alias
        note = cv2.GaussianBlur(note, (0, 0), 0.35 / scale)
    window, whole = (right - left, bottom - top), np.full((height, width), 255, np.uint8)
    laid = cv2.warpPerspective(note, matrix, window, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    cover = cv2.warpPerspective(whole, matrix, window, flags=cv2.INTER_LINEAR)
    moved = np.array([[1, 0, size / 128], [0, 1, size / 160], [0, 0, 1]]) @ matrix
    shadow = cv2.GaussianBlur(cv2.warpPerspective(whole, moved, window), (0, 0), size / 120)
    dark = 1 - rng.uniform(0.15, 0.45) * (shadow[:, :, None] / np.float32(255))
    share = cover[:, :, None] / np.float32(255)
    part = image[top:bottom, left:right]
    part[:] = (part * dark * (1 - share) + laid * share + 0.5).astype(np.uint8)
    owner[top:bottom, left:right][cover >= 128] = at
    return area


@lru_cache(maxsize=64)
def _note(kind: int, version: int) -> Picture:
    """Draw a new, flat note. Its print differs a little from version to version, like the sides and series of real notes."""
    cv2 = opencv()
    style = DENOMINATIONS[kind]
    height, width = NOTE_HEIGHT, round(NOTE_WIDTH * style.width_frac)
    rng = np.random.default_rng((kind, version, 77))
    across = np.linspace(0, 1, width, dtype=np.float32)[None, :, None]
    paper, ink = np.array(style.paper, np.float32), np.array(style.ink, np.float32)
    tint = 0.22 * (0.5 + 0.5 * np.sin(2 * np.pi * (across * (1 + version % 2) + 0.13 * kind)))
    note = np.ascontiguousarray(np.broadcast_to(paper * (1 - tint) + ink * tint, (height, width, 3)).astype(np.uint8))
    _waves(note, style, rng)
    side = 0.76 if style.portrait_right else 0.24
    _rosette(note, (width * (1 - side) + 0.1 * width * (side - 0.5), height * 0.5), height * 0.36, style, version)
    _portrait(note, (round(width * side), round(height * 0.5)), round(height * 0.33), style, rng)
    _numbers(note, style, rng)
    cv2.rectangle(note, (5, 5), (width - 6, height - 6), style.ink, 2, cv2.LINE_AA)
    cv2.rectangle(note, (10, 10), (width - 11, height - 11), style.ink, 1, cv2.LINE_AA)
    return note


def _worn(note: Picture, style: Denomination, rng: np.random.Generator) -> Picture:
    """Return a used copy of a note: with its own serial number, creases, and faded or dirty colours."""
    cv2 = opencv()
    note = note.copy()
    height, width = note.shape[:2]
    serial = "".join("ABCDEFGHKLMNPRSTUVXZ"[at] for at in rng.integers(0, 20, 2)) + "".join(
        str(digit) for digit in rng.integers(0, 10, 8)
    )
    left = 24 if style.portrait_right else round(width * 0.5)
    cv2.putText(note, serial, (left, height - 20), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (40, 30, 34), 1, cv2.LINE_AA)
    pixels = note.astype(np.float32)
    for _ in range(int(rng.integers(0, 3))):
        at, strength = int(rng.integers(20, width - 20)), rng.uniform(8, 24)
        pixels[:, at : at + 2] -= strength
        pixels[:, at + 2 : at + 4] += strength * 0.7
    pixels = (pixels - 128) * rng.uniform(0.75, 1.05) + 128 + rng.uniform(-14, 10)
    pixels += 3 * rng.standard_normal((height, width, 1), np.float32)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _waves(note: Picture, style: Denomination, rng: np.random.Generator) -> None:
    """Draw fine waves over the whole note."""
    cv2 = opencv()
    height, width = note.shape[:2]
    x = np.arange(0, width, 2, dtype=np.float32)
    phase, turns = rng.uniform(0, 2 * np.pi), 2 + style.petals % 4
    colour = tuple(int(0.55 * p + 0.45 * i) for p, i in zip(style.paper, style.ink, strict=True))
    for at in range(-2, 18):
        wave = np.sin(2 * np.pi * turns * x / width + phase + 0.35 * at) + 0.4 * np.sin(2 * np.pi * 2.7 * turns * x / width)
        y = height * (at / 15) + 7 * wave
        cv2.polylines(note, [np.stack([x, y], axis=1).astype(np.int32)], False, colour, 1, cv2.LINE_AA)  # noqa: FBT003  open


def _rosette(note: Picture, middle: tuple[float, float], radius: float, style: Denomination, version: int) -> None:
    """Draw a rosette of interlaced curves: radius r(t) = 1 + a cos(n t), rotated a little from curve to curve."""
    cv2 = opencv()
    t = np.linspace(0, 2 * np.pi, 361)
    for at in range(9):
        size = radius * (0.35 + 0.075 * at)
        r = size * (1 + 0.22 * np.cos(style.petals * t + at * 0.35 + version))
        points = np.stack([middle[0] + r * np.cos(t), middle[1] + r * np.sin(t)], axis=1)
        share = 0.55 + 0.4 * (at % 2)
        colour = tuple(int((1 - share) * p + share * i) for p, i in zip(style.paper, style.ink, strict=True))
        cv2.polylines(note, [points.astype(np.int32)], True, colour, 1, cv2.LINE_AA)  # noqa: FBT003  closed


def _portrait(note: Picture, middle: tuple[int, int], radius: int, style: Denomination, rng: np.random.Generator) -> None:
    """Draw an engraved head in an oval: hair, face, shoulders, and hatching."""
    cv2 = opencv()
    x, y = middle
    oval = np.zeros(note.shape[:2], np.uint8)
    cv2.ellipse(oval, middle, (round(radius * 0.82), radius), 0, 0, 360, 255, -1, cv2.LINE_AA)
    inner = note.copy()
    light = tuple(int(0.75 * p + 0.25 * 255) for p in style.paper)
    middle_tone = tuple(int(0.5 * p + 0.5 * i) for p, i in zip(style.paper, style.ink, strict=True))
    inner[:] = tuple(int(0.7 * p + 0.3 * i) for p, i in zip(style.paper, style.ink, strict=True))
    lean = int(rng.integers(-4, 5))
    cv2.ellipse(inner, (x, y + round(radius * 1.15)), (round(radius * 0.95), round(radius * 0.6)), 0, 0, 360, style.ink, -1)
    cv2.ellipse(
        inner, (x + lean, y - round(radius * 0.2)), (round(radius * 0.48), round(radius * 0.58)), 0, 0, 360, style.ink, -1
    )
    cv2.ellipse(
        inner, (x + lean, y - round(radius * 0.05)), (round(radius * 0.36), round(radius * 0.5)), 0, 0, 360, light, -1
    )
    for side in (-1, 1):
        cv2.circle(inner, (x + lean + side * round(radius * 0.14), y - round(radius * 0.12)), 3, style.ink, -1, cv2.LINE_AA)
    cv2.line(inner, (x + lean, y - 4), (x + lean - 2, y + round(radius * 0.12)), middle_tone, 2, cv2.LINE_AA)
    cv2.line(
        inner, (x + lean - 7, y + round(radius * 0.24)), (x + lean + 7, y + round(radius * 0.24)), style.ink, 2, cv2.LINE_AA
    )
    for line in range(y - radius, y + radius, 4):
        cv2.line(inner, (x - radius, line), (x + radius, line - 6), middle_tone, 1, cv2.LINE_AA)
    note[:] = np.where(oval[:, :, None] > 127, inner, note)
    cv2.ellipse(note, middle, (round(radius * 0.82), radius), 0, 0, 360, style.ink, 2, cv2.LINE_AA)


def _numbers(note: Picture, style: Denomination, rng: np.random.Generator) -> None:
    """Draw the number, large on the free side and small in the other corners."""
    cv2 = opencv()
    height, width = note.shape[:2]
    text = str(style.number)
    large_left = style.portrait_right
    scale = 2.1 if len(text) < 3 else 1.7
    (wide, high), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_TRIPLEX, scale, 5)
    left = round(width * 0.26 - wide / 2) if large_left else round(width * 0.74 - wide / 2)
    place = (left, round(height / 2 + high / 2))
    cv2.putText(note, text, place, cv2.FONT_HERSHEY_TRIPLEX, scale, style.paper, 11, cv2.LINE_AA)
    cv2.putText(note, text, place, cv2.FONT_HERSHEY_TRIPLEX, scale, style.ink, 5, cv2.LINE_AA)
    (wide, high), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_DUPLEX, 0.8, 2)
    for corner in ((18, 18 + high), (width - 18 - wide, 18 + high), (width - 18 - wide, height - 18)):
        cv2.putText(note, text, corner, cv2.FONT_HERSHEY_DUPLEX, 0.8, style.ink, 2, cv2.LINE_AA)
    words = "HASTEN NATIONAL BANK" if rng.random() < 0.5 else "BANK OF HASTEN"
    cv2.putText(note, words, (round(width * 0.3), 26), cv2.FONT_HERSHEY_SIMPLEX, 0.36, style.ink, 1, cv2.LINE_AA)
