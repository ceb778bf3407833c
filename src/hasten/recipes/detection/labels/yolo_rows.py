"""Decide what the rows of a folder of YOLO text mean: from `kpt_shape` and over all rows, never from the length of one.

| kind | a row after its class |
|---|---|
| box | x, y, width, height |
| box-score | a box and the confidence of a detector |
| polygon | x and y of three or more corners, as for segmentation and rotated boxes; plain boxes may be among them |
| pose | a box, and the keypoints that `kpt_shape` declares |

Six numbers may be a box with its confidence or with an angle, and rows of one length may be polygons or boxes with
keypoints. If the values do not decide, the folder is refused with the option that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.recipes.detection.labels.contract import LabelError, number

Kind: TypeAlias = Literal["box", "box-score", "polygon", "pose"]
KINDS: tuple[Kind, ...] = ("box", "box-score", "polygon", "pose")
_BOX = 5
"""Numbers of a row: the class and a box."""
FAR = 2.0
"""Limit of coordinates; larger ones are pixels or percent instead of fractions."""
_TRACKED = 7
"""Numbers of a row of a tracker; the least for a polygon, too."""
_MOST = 0.9
"""Fraction of the rows that decides for all."""
_EXAMINED = 5000
"""Number of rows whose values are examined."""


@dataclass(frozen=True)
class RowFormat:
    """The meaning of the rows.

    Attributes:
        kind: The kind of row.
        keypoints: Numbers of the keypoints of a row; None accepts any whole number of them.
        words: The meaning in words.
    """

    kind: Kind
    keypoints: int | None
    words: str

    def numbers_of(self, fields: list[str]) -> list[float]:
        """Return the coordinates of one row, without its class: four for a box, or six and more for a polygon.

        Raises:
            LabelError: The row has another number of fields, or one is not a fraction of the image.
        """
        count = len(fields) + 1
        if not self._fits(count):
            raise LabelError(f"{count} numbers in a row; here it has {self._expected()}")
        values = [number(field) for field in fields]
        if self.kind != "polygon":
            values = values[: _BOX - 1]
        largest = max(values, key=abs)
        if abs(largest) > FAR:
            raise LabelError(f"{largest:g} is not a fraction of the image, which ranges from 0 to 1: are these pixels?")
        return values

    def _fits(self, count: int) -> bool:
        if count == _BOX:
            return True
        if self.kind == "box-score":
            return count == _BOX + 1
        if self.kind == "polygon":
            return count >= 7 and count % 2 == 1
        if self.kind == "pose":
            return count > _BOX if self.keypoints is None else count == _BOX + self.keypoints
        return False

    def _expected(self) -> str:
        if self.kind == "polygon":
            return "5 for a box (class, x, y, width, height), or a class and pairs of x and y"
        if self.kind == "pose" and self.keypoints is not None:
            return f"{_BOX + self.keypoints}: a class, a box and {self.keypoints} numbers for the keypoints"
        return "6: class, x, y, width, height, confidence" if self.kind == "box-score" else "5: class, x, y, width, height"


def decide(
    rows: Iterable[list[str]], folder: Path, *, kind: str | None, keypoints: tuple[int, int] | None, source: Path | None
) -> RowFormat:
    """Return the meaning of the rows of a folder.

    Args:
        rows: The fields of all rows.
        folder: The folder, for errors.
        kind: The kind that the user gives; None decides by what is declared and by the rows.
        keypoints: What `kpt_shape` declares.
        source: The file that declares it.

    Raises:
        DataError: The kind is unknown, or the rows can be read in two ways, or in none.
    """
    given = next((known for known in KINDS if known == kind), None)
    if kind is not None and given is None:
        raise DataError(f"{kind!r} is not a kind of row of YOLO text: use one of {', '.join(KINDS)}.")
    num_keypoints = None if keypoints is None else keypoints[0] * keypoints[1]
    if kind is None and keypoints is not None and source is not None:
        declared = f"class, box and {keypoints[0]} keypoints (`kpt_shape` of {source.name}); the box is used"
        return RowFormat("pose", num_keypoints, declared)
    lengths: Counter[int] = Counter()
    examined: dict[int, list[list[str]]] = {}
    for fields in rows:
        lengths[len(fields)] += 1
        if lengths[len(fields)] <= _EXAMINED:
            examined.setdefault(len(fields), []).append(fields)
    if kind is None:
        _refuse_dota(examined.get(10, []), lengths, folder)
    _refuse_pixels(examined, folder)
    chosen = given or _kind_of(lengths, examined, folder)
    words = {
        "box": "class, x, y, width, height",
        "box-score": "class, x, y, width, height, confidence; the confidence is not used",
        "polygon": "class and polygon; its bounding box is used",
        "pose": "class, box and keypoints; the box is used",
    }
    return RowFormat(chosen, num_keypoints, words[chosen])


def _kind_of(lengths: Counter[int], examined: dict[int, list[list[str]]], folder: Path) -> Kind:
    total = lengths.total()
    if lengths[_BOX + 1] > total / 2:
        raise DataError(
            f"{folder}: {lengths[_BOX + 1]} of {total} rows have 6 numbers, which may be a box and its confidence, or a "
            f"rotated box and its angle. If it is a confidence, give --rows box-score. Rotated boxes must be converted."
        )
    if lengths[_TRACKED] > total / 2 and (_values(examined[_TRACKED])[:, -1] % 1 == 0).mean() >= _MOST:
        raise DataError(
            f"{folder}: {lengths[_TRACKED]} of {total} rows have 7 numbers and end in a whole one, as a box with a "
            f"confidence and a track does. Remove the last two, or give --rows polygon."
        )
    long = {length: count for length, count in lengths.items() if length >= 7}
    odd = sum(count for length, count in long.items() if length % 2)
    if len(long) == 1 and sum(long.values()) >= (1 - _MOST) * total:
        ((length, count),) = long.items()
        values = _values(examined[length])
        if _is_like_pose(values) and not _are_parallelograms(values):
            polygon = "a polygon, or " if odd else ""
            raise DataError(
                f"{folder}: {count} of {total} rows have {length} numbers, which may be {polygon}a box and its keypoints. "
                f"Add `kpt_shape` to data.yaml, or give --rows pose{' or --rows polygon' if odd else ''}."
            )
    return "polygon" if odd and odd >= (1 - _MOST) * total else "box"


def _values(rows: list[list[str]]) -> npt.NDArray[np.float64]:
    """Return the coordinates of rows of one length; rows that are not numbers are left out."""
    read = []
    for fields in rows:
        try:
            read.append([number(field) for field in fields[1:]])
        except LabelError:
            continue
    return np.asarray(read, dtype=np.float64).reshape(len(read), len(rows[0]) - 1)


def _is_like_pose(values: npt.NDArray[np.float64]) -> bool:
    """Return whether nearly all rows make sense as a box within the image, with most keypoints in it."""
    if not len(values):
        return False
    centre, side = values[:, None, 0:2], values[:, None, 2:4]
    in_image = (np.abs(centre - 0.5) + side / 2 <= 0.51).all(axis=(1, 2)) & (side > 0).all(axis=(1, 2))
    fits = np.zeros(len(values), dtype=np.bool_)
    for width in (2, 3):
        if (values.shape[1] - 4) % width == 0:
            points = values[:, 4:].reshape(len(values), -1, width)[:, :, :2]
            is_set = (points != 0).any(axis=2)
            inside = (np.abs(points - centre) <= 0.6 * side).all(axis=2) & is_set
            fits |= inside.sum(axis=1) >= 0.8 * is_set.sum(axis=1)
    return bool((in_image & fits).mean() >= _MOST)


def _are_parallelograms(values: npt.NDArray[np.float64]) -> bool:
    """Return whether nearly all rows are rotated boxes of four corners: a box with keypoints is not one by chance."""
    if values.shape[1] != 8:
        return False
    corners = values.reshape(-1, 4, 2)
    apart = np.abs(corners[:, 0] + corners[:, 2] - corners[:, 1] - corners[:, 3]).max(axis=1)
    return bool((apart <= 0.01).mean() >= _MOST)


def _refuse_pixels(examined: dict[int, list[list[str]]], folder: Path) -> None:
    """Refuse a folder in which most rows are pixels or percent: the smallest of them would pass for fractions."""
    values = [_values(rows)[:, :4] for length, rows in examined.items() if length >= _BOX]
    largest = np.concatenate([np.abs(part).max(axis=1) for part in values if len(part)] or [np.zeros(0)])
    num_far = int((largest > FAR).sum())
    if num_far > len(largest) / 2:
        raise DataError(
            f"{folder}: {num_far} of {len(largest)} rows have coordinates up to {largest.max():g}, but YOLO text has "
            f"fractions from 0 to 1: are these pixels, or percent? Convert them, or use VOC XML or COCO JSON."
        )


def _refuse_dota(rows: list[list[str]], lengths: Counter[int], folder: Path) -> None:
    named = sum(not fields[8].replace(".", "", 1).isdigit() for fields in rows)
    if named > lengths.total() / 4:
        raise DataError(
            f"{folder}: the rows are DOTA's (four corners in pixels, class name, difficulty): convert them to YOLO text."
        )
