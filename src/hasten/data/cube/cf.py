"""Decode packed values by the CF conventions (section 8.1, Packed Data, and section 2.5.1, Missing Data).

Missing values are found before values are scaled. `_FillValue` and `missing_value` are compared in the stored type.
`valid_min`, `valid_max` and `valid_range` apply to stored values, or to decoded ones if they are floats and the stored
values are packed integers (NetCDF User's Guide). Values are scaled in float64, in blocks that stay in the processor's cache,
and are rounded once. Integers of 8 and 16 bits are looked up in a table of all their decoded values, which is as exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.core.errors import DataError

_BLOCK = 2**15
"""Values decoded at a time: 256 KiB in float64."""
_LOOKED_UP = 2**17
"""Values from which a table of 65,536 is worth making. The table itself is smaller, and decoded without one."""
NEVER_WRITTEN = 9.969209968386869e36
"""What the NetCDF libraries leave where floats were never written."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How stored values become physical ones.

    Attributes:
        dtype: Type of the stored values; differs from the file's if `_Unsigned` says so.
        missing: Stored values that mean "missing".
        low: Smallest valid value. None if there is none.
        high: Largest valid value. None if there is none.
        limits_decoded: Whether `low` and `high` apply to decoded values.
        scale: Factor. None if the values are not packed.
        offset: What is added after scaling.
    """

    dtype: np.dtype[Any]
    missing: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    limits_decoded: bool = False
    scale: float | None = None
    offset: float = 0.0

    @classmethod
    def read(cls, dtype: np.dtype[Any], attrs: Mapping[str, Any], where: str) -> Packing:
        """Read the attributes of a variable.

        Args:
            dtype: Type of the stored values.
            attrs: Attributes in plain types.
            where: File and variable, for messages.

        Raises:
            DataError: An attribute is not a number, or cannot be right.
        """
        if dtype.kind not in "iuf":
            raise DataError(f"{where} holds {dtype}, not numbers. Choose other variables.")
        unsigned = str(attrs.get("_Unsigned", "")).lower()
        if dtype.kind in "iu" and unsigned in {"true", "false"}:
            dtype = np.dtype(f"{dtype.byteorder}{'u' if unsigned == 'true' else 'i'}{dtype.itemsize}")
        numbers = {name: _numbers(attrs, name, where) for name in (*_MISSING, *_LIMITS, "scale_factor", "add_offset")}
        packed = bool(numbers["scale_factor"] or numbers["add_offset"])
        scale, offset = ((numbers[name] or [default])[0] for name, default in (("scale_factor", 1), ("add_offset", 0)))
        if not (math.isfinite(scale) and math.isfinite(offset) and scale):
            raise DataError(f"{where} has scale_factor {scale} and add_offset {offset}. Correct the attributes.")
        if len(numbers["valid_range"]) not in {0, 2}:
            raise DataError(f"{where}: valid_range needs two numbers, and has {len(numbers['valid_range'])}.")
        low, high = (numbers["valid_range"] or [None, None])[:2]
        low = numbers["valid_min"][0] if numbers["valid_min"] else low
        high = numbers["valid_max"][0] if numbers["valid_max"] else high
        decoded = packed and dtype.kind in "iu" and any(isinstance(limit, float | np.floating) for limit in (low, high))
        if not decoded and unsigned == "true":
            low, high = (None if limit is None else _wrapped(limit, dtype) for limit in (low, high))
        if low is not None and high is not None and low > high:
            raise DataError(f"{where} has no valid values: they would be from {low} to {high}. Correct the attributes.")
        fills = [_stored(value, dtype) for name in _MISSING for value in numbers[name]]
        if dtype.kind == "f" and not numbers["_FillValue"]:
            fills.append(_stored(NEVER_WRITTEN, dtype))
        return cls(
            dtype=dtype,
            missing=tuple(dict.fromkeys(fill for fill in fills if fill is not None)),
            low=None if low is None else np.asarray(low).item(),
            high=None if high is None else np.asarray(high).item(),
            limits_decoded=decoded,
            scale=float(scale) if packed else None,
            offset=float(offset),
        )

    def decode(self, raw: NDArray[Any], out: NDArray[np.float32] | NDArray[np.float64]) -> None:
        """Write the decoded values into an array of the same shape. Missing ones become NaN."""
        if self.dtype == out.dtype and self.scale is None and self.low is None and self.high is None:
            if raw is not out:
                np.copyto(out, raw)
            for value in self.missing:
                missing = out == value
                if missing.any():
                    out[missing] = np.nan
            return
        contiguous = raw.flags.c_contiguous and out.flags.c_contiguous and out.dtype == np.float32
        if contiguous and self.dtype.kind in "iu" and self.dtype.itemsize <= 2 and raw.size >= _LOOKED_UP:
            codes = raw.view(f"u{self.dtype.itemsize}").reshape(-1)
            _lookup()(_table(self), codes, out.reshape(-1).view(np.float32))
        elif raw.size <= _BLOCK:
            self._decode(raw.view(self.dtype), out)
        elif len(raw) == 1:
            self.decode(raw[0], out[0])
        else:
            step = max(1, len(raw) * _BLOCK // raw.size)
            for first in range(0, len(raw), step):
                self.decode(raw[first : first + step], out[first : first + step])

    def _decode(self, raw: NDArray[Any], out: NDArray[Any]) -> None:
        values: NDArray[Any] = raw
        if self.scale is not None:
            values = np.multiply(raw, self.scale, dtype=np.float64)
            values += self.offset
        with np.errstate(over="ignore"):  # beyond float32: infinite, or missing, as below
            np.copyto(out, values, casting="same_kind" if values.dtype.kind == "f" else "unsafe")
        for value in self.missing:
            np.copyto(out, np.nan, where=raw == value)
        limited = values if self.limits_decoded else raw
        if self.low is not None:
            np.copyto(out, np.nan, where=limited < self.low)
        if self.high is not None:
            np.copyto(out, np.nan, where=limited > self.high)


@lru_cache(maxsize=64)
def _table(packing: Packing) -> NDArray[np.float32]:
    """Return the decoded value of every pattern of bits of an integer of 8 or 16 bits."""
    size = packing.dtype.itemsize
    table = np.empty(256**size, np.float32)
    packing.decode(np.arange(256**size, dtype=f"u{size}"), table)
    return table


_Lookup = Callable[[NDArray[np.float32], NDArray[Any], NDArray[np.float32]], object]


@lru_cache(maxsize=1)
def _lookup() -> _Lookup:
    """Return what looks up values in a table: numba, at the speed of a copy, or NumPy at a third of it."""
    try:
        import numba  # noqa: PLC0415  of the extra `datacube`
    except ImportError:
        return lambda table, codes, out: np.take(table, codes, out=out, mode="wrap")

    def look_up(table: NDArray[np.float32], codes: NDArray[Any], out: NDArray[np.float32]) -> None:
        for index in range(codes.size):
            out[index] = table[codes[index]]

    compiled: _Lookup = numba.njit(cache=True, nogil=True)(look_up)
    return compiled


_MISSING = ("_FillValue", "missing_value")
_LIMITS = ("valid_range", "valid_min", "valid_max")


def _numbers(attrs: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """Return the numbers of an attribute, in the types they are stored in."""
    if name not in attrs:
        return []
    values = np.ravel(attrs[name])
    if values.dtype.kind not in "iuf":
        try:
            return [float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: {name} is {attrs[name]!r}, not a number. Correct the attribute.") from error
    return list(values)


def _wrapped(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a limit of unsigned values that are stored as signed ones: -1 of 8 bits is 255."""
    return int(value) % 2 ** (8 * dtype.itemsize) if dtype.kind == "u" and value < 0 else value


def _stored(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value that means "missing" in the stored type. None if no stored value can equal it."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            value = dtype.type(value)
        return None if np.isnan(value) else value
    if not np.isfinite(value) or value != int(value):
        return None
    whole, bits = int(value), 8 * dtype.itemsize
    if -(2 ** (bits - 1)) <= whole < 2**bits:  # in either sign
        return np.array(whole % 2**bits, f"u{dtype.itemsize}").view(dtype.newbyteorder("="))[()]
    return None
