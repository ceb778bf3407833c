"""Dilate convex polygons exactly like Clipper, to the last integer, without its general sweep.

Clipper 6.4 (Angus Johnson; the library behind pyclipper) dilates in two steps. It puts an arc of integer points around each
corner, and then unites the ring with itself, which removes crossings. The ring of a convex polygon has no crossings, so the
second step only drops repeated and collinear points. Here the first step uses the same operations in the same order. The
absence of crossings is not assumed but checked for each ring: seen from the middle of the polygon, its points must follow
one another in one turn. Rings that fail the check are left to Clipper.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import kernel

ARC_TOLERANCE = 0.25
"""Largest deviation of an arc from a circle in pixels: Clipper's default."""


@kernel
def dilate(
    corners: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    distances: npt.NDArray[np.float64],
    ring_offsets: npt.NDArray[np.int64],
    boxes: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """Dilate the polygons.

    Args:
        corners: Corners of all polygons, truncated to integers [n, 2].
        offsets: Index of each polygon's first corner [k + 1].
        distances: Dilation of each polygon in pixels; 0 skips it [k].
        ring_offsets: Output [k + 1]: index of each ring's first point; an empty ring must be made by Clipper.
        boxes: Output [k, 4]: inclusive left, top, right and bottom of each ring that is not empty.

    Returns:
        The points of the rings, one after another: int32 [at least ring_offsets[-1], 2].
    """
    num_polygons = len(distances)
    room = longest = 0
    for number in range(num_polygons):
        count = offsets[number + 1] - offsets[number]
        longest = max(longest, count)
        if distances[number] > 0.0:
            room += _room(count, distances[number])
    rings = np.empty((room, 2), np.int32)
    polygon = np.empty((longest, 2), np.float64)
    normals = np.empty((longest, 2), np.float64)
    end = 0
    for number in range(num_polygons):
        ring_offsets[number] = end
        if distances[number] > 0.0:
            count = _stripped(corners[offsets[number] : offsets[number + 1]], polygon)
            if count >= 3:
                end += _ring(polygon[:count], normals[:count], distances[number], rings[end:])
                _bound(rings[ring_offsets[number] : end], boxes[number])
    ring_offsets[num_polygons] = end
    return rings


@kernel
def _bound(ring: npt.NDArray[np.int32], box: npt.NDArray[np.int64]) -> None:
    """Write the bounding box of a ring."""
    for i in range(len(ring)):
        x, y = np.int64(ring[i, 0]), np.int64(ring[i, 1])
        box[0], box[1] = min(x, box[0]) if i else x, min(y, box[1]) if i else y
        box[2], box[3] = max(x, box[2]) if i else x, max(y, box[3]) if i else y


@kernel
def _steps(distance: float) -> float:
    """Return the number of steps of a full turn."""
    steps = math.pi / math.acos(1.0 - min(ARC_TOLERANCE, distance * ARC_TOLERANCE) / distance)
    return min(steps, distance * math.pi)


@kernel
def _room(count: int, distance: float) -> int:
    """Return the largest number of points of a ring: arcs of one turn in total, each rounded up and with its end."""
    return int(_steps(distance)) + 3 * count + 4


@kernel
def _stripped(corners: npt.NDArray[np.int32], polygon: npt.NDArray[np.float64]) -> int:
    """Write the corners without repeated ones, clockwise as displayed; return their number."""
    last = len(corners) - 1
    while last > 0 and corners[0, 0] == corners[last, 0] and corners[0, 1] == corners[last, 1]:
        last -= 1
    count = 0
    for i in range(last + 1):
        x, y = float(corners[i, 0]), float(corners[i, 1])
        if count == 0 or x != polygon[count - 1, 0] or y != polygon[count - 1, 1]:
            polygon[count, 0], polygon[count, 1] = x, y
            count += 1
    twice = 0.0
    for i in range(count):
        before = i - 1 if i else count - 1
        twice += (polygon[before, 0] + polygon[i, 0]) * (polygon[before, 1] - polygon[i, 1])
    if twice > 0.0:
        for i in range(count // 2):
            other = count - 1 - i
            x, y = polygon[i, 0], polygon[i, 1]
            polygon[i, 0], polygon[i, 1] = polygon[other, 0], polygon[other, 1]
            polygon[other, 0], polygon[other, 1] = x, y
    return count


@kernel
def _ring(
    polygon: npt.NDArray[np.float64],
    normals: npt.NDArray[np.float64],
    distance: float,
    ring: npt.NDArray[np.int32],
) -> int:
    """Write the ring around a polygon; return its number of points, 0 if it is left to Clipper."""
    count = len(polygon)
    for i in range(count):
        after = i + 1 if i + 1 < count else 0
        along, down = polygon[after, 0] - polygon[i, 0], polygon[after, 1] - polygon[i, 1]
        factor = 1.0 / math.sqrt(along * along + down * down)
        normals[i, 0], normals[i, 1] = down * factor, -(along * factor)
    steps = _steps(distance)
    turn_sin, turn_cos = math.sin(math.pi * 2.0 / steps), math.cos(math.pi * 2.0 / steps)
    steps_per_radian = steps / (math.pi * 2.0)
    end = 0
    k = count - 1
    for j in range(count):
        sine = normals[k, 0] * normals[j, 1] - normals[j, 0] * normals[k, 1]
        cosine = normals[k, 0] * normals[j, 0] + normals[j, 1] * normals[k, 1]
        if abs(sine * distance) < 1.0 and cosine > 0.0:  # nearly straight: one point, and Clipper keeps the old normal
            if end >= len(ring):
                return 0
            _put(ring, end, polygon[j, 0] + normals[k, 0] * distance, polygon[j, 1] + normals[k, 1] * distance)
            end += 1
            continue
        if sine * distance < 1.0:  # it turns inward, or back
            return 0
        angle = math.atan2(min(sine, 1.0), normals[k, 0] * normals[j, 0] + normals[k, 1] * normals[j, 1])
        num_steps = max(int(steps_per_radian * abs(angle) + 0.5), 1)
        if end + num_steps + 1 > len(ring):
            return 0
        x, y = normals[k, 0], normals[k, 1]
        for _ in range(num_steps):
            _put(ring, end, polygon[j, 0] + x * distance, polygon[j, 1] + y * distance)
            end += 1
            x, y = x * turn_cos - turn_sin * y, x * turn_sin + y * turn_cos
        _put(ring, end, polygon[j, 0] + normals[j, 0] * distance, polygon[j, 1] + normals[j, 1] * distance)
        end += 1
        k = j
    end = _cleaned(ring, end)
    return end if _is_one_turn(ring[:end], polygon) else 0


@kernel
def _put(ring: npt.NDArray[np.int32], at: int, x: float, y: float) -> None:
    """Write a point, rounded to the nearest integers, with halves away from zero."""
    ring[at, 0] = int(x - 0.5) if x < 0.0 else int(x + 0.5)
    ring[at, 1] = int(y - 0.5) if y < 0.0 else int(y + 0.5)


@kernel
def _cleaned(ring: npt.NDArray[np.int32], count: int) -> int:
    """Drop points that repeat another or are collinear with their neighbours until none is left; return the new count."""
    before = 0
    while before != count and count >= 3:
        before, count = count, _cleaned_once(ring, count)
    return count


@kernel
def _cleaned_once(ring: npt.NDArray[np.int32], count: int) -> int:
    """Pass once over the ring; return the number of remaining points."""
    kept = 0
    for i in range(count):
        back = kept - 1 if kept else count - 1
        ahead = i + 1 if i + 1 < count else 0
        x, y = np.int64(ring[i, 0]), np.int64(ring[i, 1])
        cross = (x - ring[back, 0]) * (ring[ahead, 1] - y) - (y - ring[back, 1]) * (ring[ahead, 0] - x)
        if cross != 0:
            ring[kept, 0], ring[kept, 1] = x, y
            kept += 1
    return kept


@kernel
def _is_one_turn(ring: npt.NDArray[np.int32], polygon: npt.NDArray[np.float64]) -> bool:
    """Return whether the points make one clockwise turn around the middle of the polygon, so that nothing crosses."""
    count = len(ring)
    if count < 3:
        return False
    middle_x = middle_y = 0.0
    for i in range(len(polygon)):
        middle_x += polygon[i, 0] / len(polygon)
        middle_y += polygon[i, 1] / len(polygon)
    changes = 0
    for i in range(count):
        after = i + 1 if i + 1 < count else 0
        x, y = ring[i, 0] - middle_x, ring[i, 1] - middle_y
        next_x, next_y = ring[after, 0] - middle_x, ring[after, 1] - middle_y
        if not x * next_y - y * next_x > 1e-6:
            return False
        if (y > 0.0) != (next_y > 0.0):
            changes += 1
    return changes == 2
