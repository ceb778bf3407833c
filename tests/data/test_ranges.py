"""Rows picked from several blocks at once equal rows of the concatenated blocks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hasten.core.errors import DataError
from hasten.data.store.gather import picker

KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), lambda n: "é" * (n % 700)),
    "long text": (pa.large_string(), lambda n: chr(97 + n % 26) * (300 + n % 900)),
    "bytes": (pa.binary(), lambda n: bytes([n % 256]) * (200 + n % 800)),
    "lists": (pa.list_(pa.int32()), lambda n: list(range(n % 300))),
    "long lists": (pa.large_list(pa.float64()), lambda n: [float(n)] * (n % 130)),
    "lists of text": (pa.list_(pa.string()), lambda n: [str(n)] * (n % 4)),
    "records": (pa.struct([("role", pa.string()), ("number", pa.int16())]), lambda n: {"role": str(n), "number": n}),
    "numbers": (pa.int64(), lambda n: n),
    "booleans": (pa.bool_(), lambda n: n % 3 == 0),
    "timestamps": (pa.timestamp("us"), lambda n: n),
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("nulls", [False, True])
def test_any_rows_of_several_blocks(kind: str, nulls: bool) -> None:
    of, make = KINDS[kind]
    values = [None if nulls and n % 7 == 0 else make(n) for n in range(900)]
    blocks = [pa.array(values[start : start + 300], of) for start in (600, 0, 300)]  # not in the order of memory
    rows = np.random.default_rng(1).integers(0, 900, 2000)
    picked = picker(blocks).take(rows, rows // 300)
    picked.validate(full=True)
    assert picked.equals(pa.concat_arrays(blocks).take(pa.array(rows)))
    assert picker(blocks).take(rows[:0], rows[:0]).equals(pa.array([], of))


@pytest.mark.parametrize("nulls", [False, True])
def test_text_as_strings(nulls: bool) -> None:
    values = [None if nulls and n % 7 == 0 else f"é{n}" for n in range(60)]
    blocks = [pa.array(values[start : start + 20]) for start in (40, 0, 20)]
    rows = np.random.default_rng(1).integers(0, 60, 200)
    assert picker(blocks).strings(rows, rows // 20) == pa.concat_arrays(blocks).take(pa.array(rows)).to_pylist()
    with pytest.raises(DataError, match="int64 does not contain strings"):
        picker([pa.array([1, 2])]).strings(rows[:0], rows[:0])


def test_a_row_that_does_not_exist_is_not_read() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        picker([pa.array(["a" * 400] * 10)]).take(np.array([0, 40]), np.array([0, 0]))


def test_picked_rows_outlive_their_blocks() -> None:
    blocks = [pa.array(["a" * 400] * 2000)]
    picked = picker(blocks).take(np.arange(2000), np.zeros(2000, np.int64))
    del blocks
    other = pa.array(["b" * 400] * 2000)  # would reuse the memory of the rows
    assert picked.to_pylist() == ["a" * 400] * 2000
    assert len(other) == 2000


def test_picking_imports_no_pandas() -> None:
    code = """
import sys, numpy as np, pyarrow as pa
from hasten.data.store.gather import picker
blocks = [pa.Array.from_buffers(pa.int64(), 9, [None, pa.py_buffer(np.arange(9))])]
assert picker(blocks).take(np.array([3, 1]), np.array([0, 0])).to_pylist() == [3, 1]
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
