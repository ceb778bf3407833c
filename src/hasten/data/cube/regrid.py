"""Regrid fields on rectilinear grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasten.core.errors import DataError


@dataclass(frozen=True)
class Grid:
    """A rectilinear grid of points on the sphere. It is hashable.

    Attributes:
        latitude: In degrees north, strictly ascending or descending.
        longitude: In degrees east, strictly ascending or descending, over at most 360 degrees.

    Raises:
        DataError: The values are not such.
    """

    latitude: tuple[float, ...]
    longitude: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values, limit in (("latitude", self.latitude, 90.0), ("longitude", self.longitude, 720.0)):
            array = np.asarray(values, np.float64)
            object.__setattr__(self, name, tuple(array.tolist()))
            steps = np.diff(array)
            if array.ndim != 1 or not len(array) or not np.isfinite(array).all() or np.abs(array).max() > limit + 1e-3:
                raise DataError(f"a grid needs its {name} as finite numbers in degrees, not {values!r:.80}.")
            if not ((steps > 0).all() or (steps < 0).all()) or np.ptp(array) > 360 + 1e-3:
                raise DataError(f"the {name} of a grid must ascend or descend throughout, and span at most 360 degrees.")

    @classmethod
    def regular(cls, rows: int, columns: int) -> Self:
        """Return the centres of equal cells that cover the globe: latitude from north to south, longitude from 0 to 360."""
        if rows < 1 or columns < 1:
            raise DataError(f"a grid needs at least one row and one column, not {rows} x {columns}.")
        latitude = 90.0 - (np.arange(rows) + 0.5) * (180.0 / rows)
        return cls(tuple(latitude.tolist()), tuple(((np.arange(columns) + 0.5) * (360.0 / columns)).tolist()))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latitudes and of longitudes."""
        return len(self.latitude), len(self.longitude)
