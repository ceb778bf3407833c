"""Rows of text, bytes and lists are the same whether the kernels copy them or Arrow does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data import StoreWriter, Stream
from hasten.data.store import copying, gather
from hasten.data.store.gather import picker
from hasten.data.store.sharing import Arriving, Copy, Rows
from hasten.data.store.window import Window

pytest.importorskip("numba")
from hasten.data.store import kernels

KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), lambda n: "é" * (n % 700)),
    "long text": (pa.large_string(), lambda n: chr(97 + n % 26) * (300 + n % 900)),
    "bytes": (pa.binary(), lambda n: bytes([n % 256]) * (200 + n % 800)),
    "lists": (pa.list_(pa.int32()), lambda n: list(range(n % 300))),
    "long lists": (pa.large_list(pa.float64()), lambda n: [float(n)] * (n % 130)),
}


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each copy by the kernels was of; as in a process that has copied a lot, of two threads."""
    seen: list[int] = []

    class Counted(Copy):
        def __init__(self, of: Any, rows: Rows, out: Any) -> None:
            seen.append(len(out))
            super().__init__(of, rows, out)

    monkeypatch.setattr(gather, "Copy", Counted)
    monkeypatch.setattr(gather, "kernels_for", lambda *_: kernels)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return seen


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("nulls", [False, True])
def test_any_rows_of_several_blocks(kind: str, nulls: bool, copied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    of, make = KINDS[kind]
    values = [None if nulls and n % 7 == 0 else make(n) for n in range(900)]
    blocks = [pa.array(values[start : start + 300], of) for start in (600, 0, 300)]  # not as they lie in memory
    rows = np.random.default_rng(1).integers(0, 900, 2000)
    from_blocks = picker(blocks)
    by_kernel = from_blocks.take(rows, rows // 300)
    begun = from_blocks.begin(rows, rows // 300)
    assert isinstance(begun, Arriving)
    assert len(copied) == 2
    monkeypatch.setattr(gather, "kernels_for", lambda *_: None)
    assert by_kernel.equals(from_blocks.take(rows, rows // 300))
    assert by_kernel.equals(pa.concat_arrays(blocks).take(pa.array(rows)))
    by_kernel.validate(full=True)
    assert begun[1990:].made().equals(by_kernel[1990:])
    assert begun[100:300][50:].made().equals(by_kernel[150:300])
    assert begun.made().equals(by_kernel)
    begun.made().validate(full=True)
    monkeypatch.setattr(copying, "_PROCESS", os.getpid() + 1)
    assert by_kernel.equals(from_blocks.begin(rows, rows // 300))  # by this thread alone


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=40), st.data())
def test_ranges_of_any_length(rows: list[bytes], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=60))
    held = np.frombuffer(b"".join(rows) + b"\0", np.uint8)
    offsets, at = np.cumsum([0, *map(len, rows)]), np.array(places, np.int64)
    starts, ends = np.empty(len(at), np.int64), np.empty(len(at) + 1, np.int64)
    size = kernels.measure_ranges(offsets, at, starts, ends)
    out = np.full(size + 64, 7, np.uint8)
    Copy(kernels, Rows(held.ctypes.data, starts, ends, held), out[:size]).need(0, len(at))
    assert out[:size].tobytes() == b"".join(rows[place] for place in places)
    assert (out[size:] == 7).all()


@pytest.mark.parametrize("place", [-1, 3, 2**40])
def test_a_range_that_is_none_is_refused(place: int) -> None:
    starts, ends = np.empty(2, np.int64), np.empty(3, np.int64)
    assert kernels.measure_ranges(np.array([0, 5, 9, 9]), np.array([0, place]), starts, ends) == -1
    assert kernels.measure_ranges(np.array([0, 5, 4, 9]), np.array([0, 1]), starts, ends) == -1


def test_rows_of_nothing(copied: list[int]) -> None:
    from_blocks = picker([pa.array(["", "a" * 400, ""])])
    assert from_blocks.take(np.array([0, 2, 0]), np.zeros(3, np.int64)).to_pylist() == ["", "", ""]
    assert copied == [0]


def test_a_row_that_is_not_there_is_no_memory_of_others(copied: list[int]) -> None:
    from_blocks = picker([pa.array(["a" * 400] * 10)])
    with pytest.raises(IndexError, match=r"a row of 0 to 40 is out of range"):
        from_blocks.begin(np.array([0, 40]), np.array([0, 0]))
    assert not copied


def test_rows_under_way_hold_what_they_come_from(copied: list[int]) -> None:
    blocks = [pa.array(["a" * 400] * 2000)]
    before = pa.total_allocated_bytes()
    begun = picker(blocks).begin(np.arange(2000), np.zeros(2000, np.int64))
    del blocks
    other = pa.array(["b" * 400] * 2000)  # would lie where the rows did
    assert begun.made().to_pylist() == ["a" * 400] * 2000
    del begun, other
    assert pa.total_allocated_bytes() < before


def test_kernels_are_asked_for_long_rows_once_much_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying._Copied, "num_bytes", 0)
    monkeypatch.setattr(copying, "_WORTH_LOADING", 2**20)
    assert [copying.kernels_for(2**19, size) is not None for size in (1000, 1000, 255, 2**17, 1000)] == [
        False, True, False, False, True,
    ]  # fmt: skip
    assert copying.kernels_for(2**10, 1000) is None


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_gives_the_same_text_with_kernels_and_without(
    tmp_path: Path, workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with StoreWriter(tmp_path / "store", block_rows=512) as writer:
        text = [f"{number} " * (100 + number % 200) for number in range(4000)]
        writer.write({"text": text, "number": np.arange(4000)})
    epochs = []
    for worth in (0, 2**62):
        monkeypatch.setattr(copying, "_WORTH_LOADING", worth)
        for strings in ([], ["text"]):
            stream = Stream(tmp_path / "store", batch_size=256, seed=3, workers=workers, strings=strings)
            taken = [(batch["text"], batch["number"]) for batch in stream]  # all held: none of them is filled again
            epochs.append([(rows if strings else rows.to_pylist(), numbers.tolist()) for rows, numbers in taken])
    assert epochs[0] == epochs[1] == epochs[2] == epochs[3]


def test_text_is_begun_ahead_and_a_state_is_of_what_was_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(copying, "_WORTH_LOADING", 0)
    begun: list[int] = []
    begin = Window.begin

    def counted(window: Window, column: str, rows: Any) -> Any:
        begun.append(len(rows))
        return begin(window, column, rows)

    monkeypatch.setattr(Window, "begin", counted)
    with StoreWriter(tmp_path / "store", block_rows=512) as writer:
        writer.write({"text": [f"{number} " * (100 + number % 200) for number in range(30_000)]})
    whole = [batch["text"].to_pylist() for batch in Stream(tmp_path / "store", batch_size=64, seed=3, window_blocks=99)]
    assert max(begun) == 16 * 64  # of about 60 KB each
    begun.clear()
    stream, seen = Stream(tmp_path / "store", batch_size=64, seed=3, window_blocks=99), list[list[str]]()
    for batch in stream:
        seen.append(batch["text"].to_pylist())
        if len(seen) == 200:
            break
    assert sum(begun) > 200 * 64 + 512  # more than the batch that was given out, and the rest of its group
    again = Stream(tmp_path / "store", batch_size=64, seed=3, window_blocks=99)
    again.load_state_dict(stream.state_dict())
    assert seen + [batch["text"].to_pylist() for batch in again] == whole
