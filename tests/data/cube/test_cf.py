"""Stored values become physical ones by the CF conventions, however many are decoded at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hasten.data.cube.cf import Packing

ATTRS: list[dict[str, Any]] = [
    {},
    {"scale_factor": 0.0137, "add_offset": 271.3, "_FillValue": -5, "missing_value": 9},
    {"scale_factor": 0.1, "valid_range": np.array([-100, 100], "i2")},
    {"scale_factor": np.float32(0.1), "valid_min": -3.5},
    {"_Unsigned": "true", "_FillValue": np.int8(-1), "add_offset": 2.0},
]


@pytest.mark.parametrize("attrs", ATTRS)
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "u2", "i1", "u1"])
def test_looking_values_up_gives_what_computing_them_gives(dtype: str, attrs: dict[str, Any]) -> None:
    packing = Packing.read(np.dtype(dtype), attrs, "file: variable")
    raw = np.random.default_rng(0).integers(0, 256, 2**18 * np.dtype(dtype).itemsize, np.uint8).view(dtype).reshape(512, -1)
    many, few = np.empty(raw.shape, np.float32), np.empty(raw.shape, np.float32)
    packing.decode(raw, many)
    for row, out in zip(raw, few, strict=True):
        packing.decode(row, out)
    assert np.array_equal(many, few, equal_nan=True)


def test_values_are_scaled_in_double_precision_and_rounded_once() -> None:
    packing = Packing.read(np.dtype("i2"), {"scale_factor": 0.0137, "add_offset": 271.3}, "file: variable")
    raw = np.arange(-32768, 32768).astype("i2").repeat(2)
    out = np.empty(raw.shape, np.float32)
    packing.decode(raw, out)
    assert np.array_equal(out, (raw * 0.0137 + 271.3).astype(np.float32))
