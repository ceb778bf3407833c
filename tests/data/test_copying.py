"""Rows copied side by side are the rows."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from upshift.data.store import copying
from upshift.data.store.copying import take_rows


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each copy by several threads was asked for; there are several here."""
    seen: list[int] = []
    select = torch.index_select

    def counted(table: torch.Tensor, dim: int, at: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.append(len(at))
        return select(table, dim, at, out=out)

    monkeypatch.setattr(torch, "index_select", counted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return seen


def mapped(folder: Path, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As a store gives it: read-only."""
    np.save(folder / "values.npy", values)
    found: np.ndarray[Any, Any] = np.load(folder / "values.npy", mmap_mode="r")
    return found


def rows_of(values: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty((len(at), *values.shape[1:]), values.dtype.newbyteorder("="))
    take_rows(values, at, out)
    return out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["u1", "?", "<u2", "<f4", "<f8", ">i4"])
@pytest.mark.parametrize("shape", [(900, 700), (900, 7, 5, 20)])
def test_any_rows_of_any_type(tmp_path: Path, shared: list[int], dtype: str, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    values = mapped(tmp_path, generator.integers(0, 2 if dtype == "?" else 100, shape).astype(dtype))
    at = generator.integers(0, len(values), 800)
    assert np.array_equal(rows_of(values, at), values[at])
    assert shared == ([] if dtype == ">i4" else [800])


def test_a_little_is_copied_by_one(tmp_path: Path, shared: list[int]) -> None:
    values = mapped(tmp_path, np.arange(40, dtype=np.int64).reshape(10, 4))
    assert rows_of(values, np.array([3, 3, 9, 0])).tolist() == values[[3, 3, 9, 0]].tolist()
    assert not shared


def test_another_thread_copies_alone_and_so_does_the_child_of_a_fork(
    tmp_path: Path, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values, at = mapped(tmp_path, np.arange(600_000, dtype=np.int32).reshape(600, 1000)), np.arange(599, -1, -1)
    found: list[np.ndarray[Any, Any]] = []
    thread = threading.Thread(target=lambda: found.append(rows_of(values, at)))
    thread.start()
    thread.join()
    assert np.array_equal(found[0], values[::-1])
    assert not shared
    monkeypatch.setattr(copying, "_PROCESS", os.getpid() + 1)
    assert np.array_equal(rows_of(values, at), values[::-1])
    assert not shared


def test_a_row_that_is_not_there_is_no_memory_of_others(tmp_path: Path, shared: list[int]) -> None:
    values = mapped(tmp_path, np.zeros((600, 1000), np.int32))
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        rows_of(values, np.full(600, 600))
    assert shared == [600]
