"""What is around the drawn notes: the table they lie on, what else lies there, and how the camera saw it all."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.recipes.pictures import Picture, opencv

Plane: TypeAlias = npt.NDArray[np.float32]


def table(chance: np.random.Generator, size: int) -> Picture:
    """A table with clutter, `uint8 [size, size, 3]`: wood, cloth, stone or plain, and things that are no notes."""
    made = (_wood, _cloth, _stone, _plain)[int(chance.integers(4))](chance, size)
    picture = np.ascontiguousarray(np.clip(made, 0, 255).astype(np.uint8))
    for _ in range(int(chance.integers(2, 12))):
        _thing(picture, chance)
    return picture


def finish(picture: Picture, chance: np.random.Generator) -> Picture:
    """The picture as a camera takes it: uneven light, blur, noise."""
    cv2 = opencv()
    size = picture.shape[0]
    light = _smooth(chance, size, cells=3) * chance.uniform(0.1, 0.5)
    seen = picture.astype(np.float32) * (chance.uniform(0.7, 1.15) * (1 + light))[:, :, None]
    seen *= 1 + chance.uniform(-0.08, 0.08, 3).astype(np.float32)  # warm or cold light
    sigma = chance.uniform(0, 1.6) * size / 640
    if sigma > 0.3:
        seen = cv2.GaussianBlur(seen, (0, 0), sigma)
    if chance.random() < 0.15:  # the hand was not still
        length = max(3, round(size / 640 * chance.uniform(4, 9)))
        kernel = np.zeros((length, length), np.float32)
        cv2.line(kernel, (0, int(chance.integers(length))), (length - 1, int(chance.integers(length))), 1.0, 1)
        seen = cv2.filter2D(seen, -1, kernel / kernel.sum())
    seen += chance.uniform(1, 6) * chance.standard_normal(seen.shape, np.float32)
    return np.clip(seen, 0, 255).astype(np.uint8)


def _smooth(chance: np.random.Generator, size: int, cells: int) -> Plane:
    """Smooth noise from -1 to 1, `float32 [size, size]`, with about `cells` hills a side."""
    coarse = chance.uniform(-1, 1, (cells + 1, cells + 1)).astype(np.float32)
    made: Plane = opencv().resize(coarse, (size, size), interpolation=opencv().INTER_CUBIC)
    return np.clip(made, -1, 1)


def _colour(chance: np.random.Generator) -> Plane:
    """A colour that tables have: rarely a bright one."""
    grey, vivid = chance.uniform(50, 220), chance.uniform(0, 0.7) ** 1.5
    made: Plane = (grey + vivid * (chance.uniform(0, 255, 3) - grey)).astype(np.float32)
    return made


def _wood(chance: np.random.Generator, size: int) -> Plane:
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    if chance.random() < 0.5:
        x, y = y, x
    grain = np.sin(2 * np.pi * (chance.uniform(6, 16) * y + 0.8 * _smooth(chance, size, 4) + 0.3 * x))
    colour = np.array([chance.uniform(90, 190), chance.uniform(60, 130), chance.uniform(30, 80)], np.float32)
    made: Plane = colour * (1 + 0.16 * grain + 0.1 * _smooth(chance, size, 40))[:, :, None]
    return made


def _cloth(chance: np.random.Generator, size: int) -> Plane:
    y, x = np.mgrid[:size, :size].astype(np.float32)
    step = size / chance.uniform(8, 40)
    checks = np.sign(np.sin(2 * np.pi * x / step)) + np.sign(np.sin(2 * np.pi * y / step))
    first, second = _colour(chance), _colour(chance)
    share = ((checks + 2) / 4)[:, :, None]
    made: Plane = (first * share + second * (1 - share)) * (1 + 0.08 * _smooth(chance, size, size // 8))[:, :, None]
    return made


def _stone(chance: np.random.Generator, size: int) -> Plane:
    colour = _colour(chance)
    pattern = 0.18 * _smooth(chance, size, 6) + 0.14 * _smooth(chance, size, 30) + 0.1 * _smooth(chance, size, size // 4)
    made: Plane = colour * (1 + pattern)[:, :, None]
    return made


def _plain(chance: np.random.Generator, size: int) -> Plane:
    colour = _colour(chance)
    made: Plane = colour * (1 + 0.12 * _smooth(chance, size, 2))[:, :, None]
    return made


def _thing(picture: Picture, chance: np.random.Generator) -> None:
    """Something that is no note: a coin, a card, a pen, a sheet with lines of print."""
    cv2 = opencv()
    size = picture.shape[0]
    x, y = (int(value) for value in chance.uniform(0, size, 2))
    colour = tuple(int(value) for value in chance.uniform(20, 240, 3))
    darker = tuple(int(value * 0.6) for value in colour)
    kind = int(chance.integers(4))
    if kind == 0:
        radius = max(3, round(size * chance.uniform(0.02, 0.05)))
        cv2.circle(picture, (x, y), radius, colour, -1, cv2.LINE_AA)
        cv2.circle(picture, (x, y), max(1, round(radius * 0.8)), darker, max(1, radius // 8), cv2.LINE_AA)
        return
    turned = ((x, y), (size * chance.uniform(0.1, 0.35), size * chance.uniform(0.06, 0.2)), chance.uniform(0, 180))
    if kind == 1:
        turned = (turned[0], (size * chance.uniform(0.3, 0.5), size * chance.uniform(0.008, 0.02)), turned[2])
    corners = cv2.boxPoints(turned)
    cv2.fillConvexPoly(picture, corners.astype(np.int32), colour, cv2.LINE_AA)
    cv2.polylines(picture, [corners.astype(np.int32)], True, darker, max(1, size // 320), cv2.LINE_AA)  # noqa: FBT003  closed
    if kind == 3:
        for share in np.linspace(0.15, 0.85, 6):
            start = corners[0] * (1 - share) + corners[1] * share
            end = corners[3] * (1 - share) + corners[2] * share
            begin, stop = start * 0.9 + end * 0.1, start * 0.1 + end * 0.9
            cv2.line(picture, tuple(map(int, begin)), tuple(map(int, stop)), darker, max(1, size // 320), cv2.LINE_AA)
