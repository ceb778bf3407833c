"""Blocks that must be read from disk are requested ahead of time, and other blocks are not."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten.data import Store, StoreWriter, Stream
from hasten.data.store import reading
from hasten.data.store.layout import ShardFile
from hasten.data.store.mapping import LocalMap
from hasten.data.stream.buffers import Buffers
from hasten.data.stream.opened import Opened
from hasten.data.stream.order import Order
from hasten.data.stream.samples import RowSamples, Samples


class Blocks(Samples):
    """Provide blocks of one sample, some of them on disk, and record the calls for each."""

    def __init__(self, on_disk: set[int]) -> None:
        self.counts = np.ones(6, np.int64)
        self.on_disk, self.events, self.seconds = on_disk, list[str](), 0.0

    def hint(self, blocks: Any) -> None:
        self.events += [f"hint {number}" for number in blocks]

    def open(self, blocks: Any) -> Any:
        self.events += [f"open {number}" for number in blocks]
        self.seconds += 0.01 * len(self.on_disk.intersection(blocks.tolist()))
        return blocks

    def take(self, opened: Any, samples: Any, buffers: Buffers) -> Any:
        assert samples.tolist() == opened.tolist()
        return {"number": samples}


@pytest.mark.parametrize(
    ("on_disk", "wanted"),
    [
        (set[int](), "hint 0, open 0, open 1, open 2, open 3, open 4, open 5"),
        ({0}, "hint 0, open 0, hint 1, open 1, hint 2, open 2, hint 3, open 3, hint 4, open 4, hint 5, open 5"),
        ({3}, "hint 0, open 0, open 1, open 2, open 3, hint 4, open 4, hint 5, open 5"),
    ],
)
def test_windows_are_asked_for_early_once_one_had_to_be_read(
    on_disk: set[int], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.data.stream.opened._FROM_DISK_SECONDS", 0.005)
    samples = Blocks(on_disk)
    monkeypatch.setattr("hasten.data.stream.opened.perf_counter", lambda: samples.seconds)
    opened = Opened(samples, order := Order(samples.counts, seed=0, epoch=0, shuffle=False, window_blocks=1))
    for number in range(6):
        assert opened.take(order.parts(number, number + 1), Buffers(most=1))["number"].tolist() == [number]
    assert ", ".join(samples.events) == wanted


def resident(mapped: LocalMap, start: int, end: int) -> bool:
    """Return True if the pages of a range are in memory."""
    first = start - start % 4096
    pages = np.zeros(-(-(end - first) // 4096), np.uint8)
    ask = ctypes.CDLL(None, use_errno=True).mincore
    ask.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert ask(mapped._address + first, end - first, pages.ctypes.data) == 0
    return bool((pages & 1).all())


@pytest.mark.parametrize("act", ["hint", "need"])
def test_a_range_of_a_file_comes_into_memory(tmp_path: Path, act: str) -> None:
    data = np.random.default_rng(0).integers(0, 255, 5_000_001, dtype=np.uint8)
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(data.tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = LocalMap(path, ShardFile(path="file", column="", num_bytes=len(data), sha256=""))
    getattr(mapped, act)(1_000_001, len(data))
    deadline = time.monotonic() + 20
    while not resident(mapped, 1_000_001, len(data)) and time.monotonic() < deadline:
        assert act == "hint"  # needed ranges are available at once
        time.sleep(0.01)
    assert resident(mapped, 1_000_001, len(data))
    assert np.array_equal(np.frombuffer(mapped.view, np.uint8), data)
    getattr(mapped, act)(5, 5)  # an empty range


def test_an_empty_file_has_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mapped = LocalMap(tmp_path / "file", ShardFile(path="file", column="", num_bytes=0, sha256=""))
    mapped.need(0, 0)
    assert not len(mapped.view)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Write a store of 40 blocks of 104 rows."""
    with StoreWriter(tmp_path / "store", block_rows=104) as writer:
        writer.write({"text": [f"{number} " * 50 for number in range(4160)], "pixels": np.zeros((4160, 8), np.uint8)})
    return Store(tmp_path / "store")


def test_reading_ahead_stays_within_its_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(LocalMap, "hint", lambda _self, start, end: asked.append(end - start))
    RowSamples(store, ["pixels"], []).hint(np.arange(10))
    assert not asked  # these columns need no Arrow blocks
    RowSamples(store, None, []).hint(np.arange(10))
    assert len(asked) == 10
    monkeypatch.setattr(reading, "_MOST_HINTED_BYTES", sum(asked[:3]))
    asked.clear()
    RowSamples(store, None, []).hint(np.arange(10))
    assert len(asked) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_from_the_disk_is_the_same(store: Store, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def epoch() -> list[list[str]]:
        stream = Stream(store, batch_size=64, seed=1, window_blocks=4, columns=["text"], workers=workers)
        return [batch["text"].to_pylist() for batch in stream]

    warm = epoch()
    asked: list[tuple[int, int]] = []
    hint = LocalMap.hint

    def counted(mapped: LocalMap, start: int, end: int) -> None:
        asked.append((start, end))
        hint(mapped, start, end)

    monkeypatch.setattr(LocalMap, "hint", counted)
    monkeypatch.setattr("hasten.data.stream.opened._FROM_DISK_SECONDS", 0)  # as if every block was read from disk
    assert epoch() == warm
    assert len(set(asked)) == 40
