"""The polygons of an image in three flat arrays: compact, no Python object per point, and ready for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError

MAX_COORDINATE = 1_000_000
"""In pixels. Larger coordinates are label errors and would overflow the integers of the polygon filler."""


@dataclass(frozen=True, eq=False)
class PolygonArray:
    """Closed polygons of one image, in pixels.

    Attributes:
        points: Corners of all polygons, one polygon after another, x then y: float32 [n, 2].
        offsets: Index of each polygon's first corner, and the total number of corners at the end: int32 [k + 1].
        ignored: Polygons marked "###", which are neither text nor background: bool [k].

    Raises:
        DataError: The arrays are inconsistent, a polygon has less than three corners, or a coordinate is not finite.
    """

    points: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int32]
    ignored: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 2 or self.points.dtype != np.float32:
            raise DataError(f"points must be float32 [n, 2], not {self.points.dtype} {list(self.points.shape)}.")
        if self.offsets.ndim != 1 or self.offsets.dtype != np.int32 or self.ignored.dtype != np.bool_:
            raise DataError(
                f"offsets must be int32 [k + 1] and ignored bool, not {self.offsets.dtype} and {self.ignored.dtype}."
            )
        if self.ignored.shape != (len(self.offsets) - 1,):
            raise DataError(
                f"{len(self.offsets)} offsets describe {len(self.offsets) - 1} polygons, not {self.ignored.shape}."
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.points):
            raise DataError(
                f"offsets must range from 0 to {len(self.points)}, not from {self.offsets[0]} to {self.offsets[-1]}."
            )
        short = np.flatnonzero(np.diff(self.offsets) < 3)
        if len(short):
            raise DataError(f"polygon {short[0]} has less than three corners: repair polygons when reading them.")
        if len(self.points) and not np.abs(self.points).max() <= MAX_COORDINATE:
            raise DataError(
                f"a coordinate is not finite or beyond {MAX_COORDINATE:,} pixels: repair polygons when reading them."
            )

    @classmethod
    def from_list(cls, polygons: Sequence[npt.ArrayLike], ignored: Sequence[bool] | None = None) -> Self:
        """Create the arrays from single polygons.

        Args:
            polygons: Corners [m, 2] of each polygon, x then y, in pixels.
            ignored: Whether each polygon is neither text nor background; None ignores none.

        Raises:
            DataError: The polygons are invalid; see the class.
        """
        parts = [np.asarray(polygon, dtype=np.float32) for polygon in polygons]
        wrong = next((number for number, part in enumerate(parts) if part.ndim != 2 or part.shape[1] != 2), None)
        if wrong is not None:
            raise DataError(f"polygon {wrong} must be [m, 2], x then y of each corner, not {list(parts[wrong].shape)}.")
        lengths = [0, *(len(part) for part in parts)]
        return cls(
            np.concatenate([np.empty((0, 2), np.float32), *parts]),
            np.cumsum(lengths, dtype=np.int32),
            np.zeros(len(parts), np.bool_) if ignored is None else np.array(ignored, dtype=np.bool_).reshape(-1),
        )

    def __len__(self) -> int:
        return len(self.ignored)

    def polygon(self, number: int) -> npt.NDArray[np.float32]:
        """Return a view of the corners of one polygon [m, 2]."""
        return self.points[self.offsets[number] : self.offsets[number + 1]]
