"""Regrid fields between rectilinear grids, on any device.

Such grids are separable: each target value is a weighted sum of rows, then of columns. Regridding is two products with small
matrices, `rows @ field @ columns`, which take less time than reading the fields. A target value needs few of the rows and
columns, so the products are taken for some target values at a time, with those that they need.

    to = regridder(Grid(latitude, longitude), Grid.regular(64, 64))
    to(fields)                       # [..., latitude, longitude] -> [..., 64, 64]

bilinear       interpolates between the nearest points; takes the outermost row between it and the pole
conservative   averages over the area of the target's cells (first order), which keeps global means and does not alias

Edges of cells are half-way between points. Longitudes that surround the globe are periodic, wherever they start. Left out:
curvilinear and unstructured grids, and interpolation across the pole.

Source: Jones 1999, "First- and Second-Order Conservative Remapping Schemes for Grids in Spherical Coordinates".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.core.errors import DataError

Method = Literal["auto", "bilinear", "conservative"]
METHODS: tuple[Method, ...] = ("auto", "bilinear", "conservative")
VALID_FRAC = 0.5
"""Least share of a target value's weight that must not be missing."""
_CLOSE = 1e-6
"""Degrees that coordinates stored as float32 may be off."""
_ROWS, _COLUMNS = 8, 16
"""Rows and columns of the target that are computed at a time: fewer need less arithmetic, and more calls."""
_MOST_WEIGHTS = 2**27
"""Largest matrix: about 8,000 points to 16,000 along one axis."""
_Values = NDArray[np.float64]


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
        return cls(_centres(90.0, -90.0, rows), _centres(0.0, 360.0, columns))

    @classmethod
    def over(cls, source: Grid, rows: int, columns: int) -> Self:
        """Return the centres of equal cells over the area of another grid, from north to south and from west to east.

        Longitudes that surround the globe go from 0 to 360.
        """
        south, *_, north = _latitudes(source).edges.tolist()
        around = _longitudes(source)
        west, east = (0.0, 360.0) if around.period else (around.edges[0], around.edges[-1])
        return cls(_centres(north, south, rows), _centres(west, east, columns))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latitudes and of longitudes."""
        return len(self.latitude), len(self.longitude)


def _centres(first: float, last: float, count: int) -> tuple[float, ...]:
    if not 2 <= count <= 100_000:
        raise DataError(f"a grid needs 2 to 100,000 rows and columns, not {count:,}.")
    return tuple((first + (np.arange(count) + 0.5) * ((last - first) / count)).tolist())


class Regrid:
    """Regrid fields from one grid to another. Made by `regridder`.

    Args:
        source: Grid of the fields.
        target: Grid wanted.
        method: How; see the module.

    Attributes:
        source: As given.
        target: As given.
        ways: The method along latitude and along longitude.
    """

    def __init__(self, source: Grid, target: Grid, method: Method) -> None:
        if method not in METHODS:
            raise DataError(f"the method must be one of {', '.join(METHODS)}, not {method!r}.")
        self.source, self.target = source, target
        latitudes, longitudes = (_latitudes(source), _latitudes(target)), (_longitudes(source), _longitudes(target))
        self.ways = (_way(*latitudes, method), _way(*longitudes, method))
        self._rows = _bands(_weights(*latitudes, "latitude", self.ways[0]), _ROWS)
        self._columns = _bands(_weights(*longitudes, "longitude", self.ways[1]), _COLUMNS)

    def __call__(self, fields: torch.Tensor) -> torch.Tensor:
        """Regrid fields, `[..., latitude, longitude]`, to float32 `[..., latitude', longitude']` on the same device.

        Missing values (not finite) have no weight; the weights of the others are renormalised. The result is NaN if less
        than half of the weight remains.

        Raises:
            DataError: The fields are on another grid.
        """
        if fields.shape[-2:] != self.source.shape:
            raise DataError(f"the regridder is for {self.source.shape} points, and the fields have {fields.shape[-2:]}.")
        flat = fields.reshape(-1, *self.source.shape).float()
        out = self._sums(flat)
        missing = ~out.isfinite().flatten(1).all(1)  # a missing value spreads to the sums
        if bool(missing.any()):
            out[missing] = self._renormalised(flat[missing])
        return out.reshape(*fields.shape[:-2], *self.target.shape)

    def _renormalised(self, fields: torch.Tensor) -> torch.Tensor:
        valid = fields.isfinite()
        weight = self._sums(valid.float())
        sums = self._sums(torch.where(valid, fields, 0.0))
        return torch.where(weight >= VALID_FRAC - _CLOSE, sums / weight, torch.nan)

    def _sums(self, fields: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums, `[fields, latitude', longitude']`."""
        with torch.autocast(fields.device.type, enabled=False):
            rows = torch.cat([weights.to(fields.device) @ fields[:, band] for band, weights in self._rows], 1)
            flat = rows.flatten(0, 1)
            sums = torch.cat([flat[:, band] @ weights.T.to(fields.device) for band, weights in self._columns], 1)
            return sums.view(-1, *self.target.shape)


@lru_cache(maxsize=64)
def regridder(source: Grid, target: Grid, method: Method = "auto") -> Regrid:
    """Return what regrids from one grid to another. Its weights are computed once.

    Args:
        source: Grid of the fields.
        target: Grid wanted.
        method: `auto` is conservative along an axis where the target is coarser, and bilinear where it is not.

    Raises:
        DataError: The target has points outside of the source, the grids are too large, or there is no such method.
    """
    return Regrid(source, target, method)


@dataclass(frozen=True)
class _Axis:
    """An axis in ascending order.

    Attributes:
        points: Distinct points.
        order: Where each is in the grid.
        edges: Edges of their cells, one more than points.
        period: 360 if the axis surrounds the globe, else 0.
    """

    points: _Values
    order: NDArray[np.int64]
    edges: _Values
    period: float
    size: int


def _latitudes(grid: Grid) -> _Axis:
    points, order = _ascending(grid.latitude, "latitude")
    edges = _edges(points)
    steps = np.diff(points)[[0, -1]]
    for end, pole, step in ((0, -90.0, steps[0]), (-1, 90.0, steps[1])):
        # The outermost cells of a Gaussian grid end at the poles, less than half a step further.
        edges[end] = pole if abs(edges[end]) > 90 - step / 2 else edges[end]
    return _Axis(points, order, edges, 0.0, len(points))


def _longitudes(grid: Grid) -> _Axis:
    points, order = _ascending(grid.longitude, "longitude")
    size, step = len(points), float(np.diff(points).max())
    gap = 360 - float(np.ptp(points))
    if gap > 1.5 * step:
        return _Axis(points, order, _edges(points), 0.0, size)
    if gap < step / 100:  # the first meridian is repeated at the end
        points, order = points[:-1], order[:-1]
    middle = (points + np.append(points[1:], points[0] + 360)) / 2
    return _Axis(points, order, np.insert(middle, 0, middle[-1] - 360), 360.0, size)


def _ascending(values: tuple[float, ...], name: str) -> tuple[_Values, NDArray[np.int64]]:
    if len(values) < 2:
        raise DataError(f"a grid to regrid needs at least two values of {name}, not {len(values)}.")
    points = np.asarray(values, np.float64)
    order = np.argsort(points)
    return points[order], order


def _edges(points: _Values) -> _Values:
    middle = (points[1:] + points[:-1]) / 2
    return np.concatenate([[2 * points[0] - middle[0]], middle, [2 * points[-1] - middle[-1]]])


def _way(source: _Axis, target: _Axis, method: Method) -> Literal["bilinear", "conservative"]:
    if method != "auto":
        return method
    coarser = np.median(np.diff(target.points)) > np.median(np.diff(source.points)) * (1 + 1e-3)
    return "conservative" if coarser else "bilinear"


def _weights(source: _Axis, target: _Axis, name: str, way: str) -> _Values:
    """Return the weights of all source points for each target point, `[target, source]`, in the order of the grids."""
    if source.size * target.size > _MOST_WEIGHTS:
        raise DataError(f"grids with {source.size:,} and {target.size:,} values of {name} are too large to regrid.")
    low, high, points = target.edges[:-1], target.edges[1:], target.points
    if name == "longitude":
        turns = np.floor((points - source.edges[0] + _CLOSE) / 360) * 360
        low, high, points = low - turns, high - turns, points - turns
    outside = (points < source.edges[0] - _CLOSE) | (points > source.edges[-1] + _CLOSE)
    if outside.any():
        raise DataError(
            f"the target has the {name} {target.points[outside][0]:g}, and the source ends at {source.edges[0]:g} and "
            f"{source.edges[-1]:g} degrees. Choose a target within the source, such as Grid.over(source, rows, columns)."
        )
    found = _overlaps(source, low, high, name) if way == "conservative" else _between(source, points)
    weights = np.zeros((target.size, source.size))
    weights[np.ix_(target.order, source.order)] = found
    if len(target.order) < target.size:  # a repeated meridian has the values of the first
        weights[np.setdiff1d(np.arange(target.size), target.order)] = weights[target.order[0]]
    return weights


def _bands(weights: _Values, size: int) -> list[tuple[slice, torch.Tensor]]:
    """Return, for each `size` target points, the range of source points that have weights, and these, `[target, source]`."""
    bands = []
    for first in range(0, len(weights), size):
        part = weights[first : first + size]
        used = np.flatnonzero(part.any(0))
        band = slice(int(used[0]), int(used[-1]) + 1)
        bands.append((band, torch.from_numpy(part[:, band]).float()))
    return bands


def _between(source: _Axis, points: _Values) -> _Values:
    """Return linear interpolation weights; beyond the ends, the last point has all."""
    have, count = source.points, len(source.points)
    if source.period:
        have = np.concatenate([[have[-1] - 360], have, [have[0] + 360]])
    right = np.clip(np.searchsorted(have, points, side="right"), 1, len(have) - 1)
    share = np.clip((points - have[right - 1]) / (have[right] - have[right - 1]), 0, 1)
    weights, each, shift = np.zeros((len(points), count)), np.arange(len(points)), 1 if source.period else 0
    np.add.at(weights, (each, (right - 1 - shift) % count), 1 - share)
    np.add.at(weights, (each, (right - shift) % count), share)
    return weights


def _overlaps(source: _Axis, low: _Values, high: _Values, name: str) -> _Values:
    """Return the share of each target cell's covered area that each source cell has."""
    found = np.zeros((len(low), len(source.points)))
    for turn in {0.0, source.period, -source.period}:
        left = np.maximum(low[:, None], source.edges[None, :-1] + turn)
        right = np.minimum(high[:, None], source.edges[None, 1:] + turn)
        area = right - left if name == "longitude" else np.sin(np.deg2rad(right)) - np.sin(np.deg2rad(left))
        found += np.where(right > left, area, 0.0)
    weights: _Values = found / found.sum(1, keepdims=True)
    return weights
