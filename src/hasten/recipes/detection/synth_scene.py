"""The surroundings of the generated notes: the table, clutter on it, and the effects of the camera."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.recipes.pictures import Picture, opencv

Plane: TypeAlias = npt.NDArray[np.float32]


def table(rng: np.random.Generator, size: int) -> Picture:
    """Generate a table with clutter, `uint8 [size, size, 3]`: wood, cloth, stone or plain, and objects other than notes."""
    made = (_wood, _cloth, _stone, _plain)[int(rng.integers(4))](rng, size)
    image = np.ascontiguousarray(np.clip(made, 0, 255).astype(np.uint8))
    for _ in range(int(rng.integers(2, 12))):
        _draw_object(image, rng)
    return image


def finish(image: Picture, rng: np.random.Generator) -> Picture:
    """Apply the effects of a camera: uneven light, blur, noise."""
    cv2 = opencv()
    size = image.shape[0]
    light = _smooth(rng, size, cells=3) * rng.uniform(0.1, 0.5)
    lit = image.astype(np.float32) * (rng.uniform(0.7, 1.15) * (1 + light))[:, :, None]
    lit *= 1 + rng.uniform(-0.08, 0.08, 3).astype(np.float32)  # colour temperature
    sigma = rng.uniform(0, 1.6) * size / 640
    if sigma > 0.3:
        lit = cv2.GaussianBlur(lit, (0, 0), sigma)
    if rng.random() < 0.15:  # camera shake
        length = max(3, round(size / 640 * rng.uniform(4, 9)))
        kernel = np.zeros((length, length), np.float32)
        cv2.line(kernel, (0, int(rng.integers(length))), (length - 1, int(rng.integers(length))), 1.0, 1)
        lit = cv2.filter2D(lit, -1, kernel / kernel.sum())
    lit += rng.uniform(1, 6) * rng.standard_normal(lit.shape, np.float32)
    return np.clip(lit, 0, 255).astype(np.uint8)


def _smooth(rng: np.random.Generator, size: int, cells: int) -> Plane:
    """Return smooth noise from -1 to 1, `float32 [size, size]`, with about `cells` peaks per side."""
    coarse = rng.uniform(-1, 1, (cells + 1, cells + 1)).astype(np.float32)
    made: Plane = opencv().resize(coarse, (size, size), interpolation=opencv().INTER_CUBIC)
    return np.clip(made, -1, 1)


def _colour(rng: np.random.Generator) -> Plane:
    """Return a typical colour of a table, rarely a bright one."""
    grey, vivid = rng.uniform(50, 220), rng.uniform(0, 0.7) ** 1.5
    made: Plane = (grey + vivid * (rng.uniform(0, 255, 3) - grey)).astype(np.float32)
    return made


def _wood(rng: np.random.Generator, size: int) -> Plane:
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    if rng.random() < 0.5:
        x, y = y, x
    grain = np.sin(2 * np.pi * (rng.uniform(6, 16) * y + 0.8 * _smooth(rng, size, 4) + 0.3 * x))
    colour = np.array([rng.uniform(90, 190), rng.uniform(60, 130), rng.uniform(30, 80)], np.float32)
    made: Plane = colour * (1 + 0.16 * grain + 0.1 * _smooth(rng, size, 40))[:, :, None]
    return made


def _cloth(rng: np.random.Generator, size: int) -> Plane:
    y, x = np.mgrid[:size, :size].astype(np.float32)
    step = size / rng.uniform(8, 40)
    checks = np.sign(np.sin(2 * np.pi * x / step)) + np.sign(np.sin(2 * np.pi * y / step))
    first, second = _colour(rng), _colour(rng)
    share = ((checks + 2) / 4)[:, :, None]
    made: Plane = (first * share + second * (1 - share)) * (1 + 0.08 * _smooth(rng, size, size // 8))[:, :, None]
    return made


def _stone(rng: np.random.Generator, size: int) -> Plane:
    colour = _colour(rng)
    pattern = 0.18 * _smooth(rng, size, 6) + 0.14 * _smooth(rng, size, 30) + 0.1 * _smooth(rng, size, size // 4)
    made: Plane = colour * (1 + pattern)[:, :, None]
    return made


def _plain(rng: np.random.Generator, size: int) -> Plane:
    colour = _colour(rng)
    made: Plane = colour * (1 + 0.12 * _smooth(rng, size, 2))[:, :, None]
    return made


def _draw_object(image: Picture, rng: np.random.Generator) -> None:
    """Draw an object other than a note: a coin, a card, a pen, or a sheet with lines of print."""
    cv2 = opencv()
    size = image.shape[0]
    x, y = (int(value) for value in rng.uniform(0, size, 2))
    colour = tuple(int(value) for value in rng.uniform(20, 240, 3))
    darker = tuple(int(value * 0.6) for value in colour)
    kind = int(rng.integers(4))
    if kind == 0:
        radius = max(3, round(size * rng.uniform(0.02, 0.05)))
        cv2.circle(image, (x, y), radius, colour, -1, cv2.LINE_AA)
        cv2.circle(image, (x, y), max(1, round(radius * 0.8)), darker, max(1, radius // 8), cv2.LINE_AA)
        return
    turned = ((x, y), (size * rng.uniform(0.1, 0.35), size * rng.uniform(0.06, 0.2)), rng.uniform(0, 180))
    if kind == 1:
        turned = (turned[0], (size * rng.uniform(0.3, 0.5), size * rng.uniform(0.008, 0.02)), turned[2])
    corners = cv2.boxPoints(turned)
    cv2.fillConvexPoly(image, corners.astype(np.int32), colour, cv2.LINE_AA)
    cv2.polylines(image, [corners.astype(np.int32)], True, darker, max(1, size // 320), cv2.LINE_AA)  # noqa: FBT003  closed
    if kind == 3:
        for share in np.linspace(0.15, 0.85, 6):
            start = corners[0] * (1 - share) + corners[1] * share
            end = corners[3] * (1 - share) + corners[2] * share
            begin, stop = start * 0.9 + end * 0.1, start * 0.1 + end * 0.9
            cv2.line(image, tuple(map(int, begin)), tuple(map(int, stop)), darker, max(1, size // 320), cv2.LINE_AA)
