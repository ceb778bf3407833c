"""Write speeds: bounded, interleaved, cleaned up, and told where they cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten.profile import storage
from hasten.profile.storage import WriteSpeed, measure_write_speeds


def test_each_folder_has_a_speed_with_its_spread_and_nothing_is_left(tmp_path: Path) -> None:
    folders = {"one": tmp_path / "a", "two": tmp_path / "b"}
    for folder in folders.values():
        folder.mkdir()
    found = measure_write_speeds(folders, size=10_000, rounds=3)
    assert set(found) == {"one", "two"}
    for speed in found.values():
        assert speed.rounds == 3
        assert 0 < speed.low <= speed.mb_s <= speed.high
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_rounds_take_turns_and_each_write_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync = os.fsync

    def spy(number: int) -> None:
        target = Path(f"/proc/self/fd/{number}").readlink()
        assert target.stat().st_size == 1000
        order.append(target.parent.name)
        fsync(number)

    monkeypatch.setattr(os, "fsync", spy)
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        folder.mkdir()
    measure_write_speeds(folders, size=1000, rounds=2)
    assert order == ["b", "a", "a", "b", "b", "a"]


def test_a_folder_that_cannot_be_written_says_why_and_stops_no_other(tmp_path: Path) -> None:
    found = measure_write_speeds({"gone": tmp_path / "gone", "here": tmp_path}, size=1000, rounds=2)
    assert found["gone"].rounds == 0
    assert "No such file" in found["gone"].why
    assert found["here"].rounds == 2


def test_it_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def write_s(folder: Path, _content: bytes) -> float:
        written.append(folder)
        return 0.5

    monkeypatch.setattr(storage, "_write_s", write_s)
    now = iter(range(100))
    monkeypatch.setattr(storage, "perf_counter", lambda: float(next(now)))
    found = measure_write_speeds({"a": tmp_path}, size=1_000_000, rounds=50, max_seconds=3.0)
    assert len(written) == 4
    assert found["a"] == WriteSpeed(mb_s=2.0, low=2.0, high=2.0, rounds=3)
