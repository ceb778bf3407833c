"""Memory that grows with every step is distinguished from memory that grows for a while."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from hasten.script.watch.memory import memory_in_use, memory_limit, steady_growth
from hasten.script.watch.profile import make_profile
from hasten.script.watch.record import PHASES, Recorder, report

MIB, GIB = 2**20, 2**30


def samples(*used_mib: float) -> list[tuple[int, int]]:
    return [(4 * number, int(used * MIB)) for number, used in enumerate(used_mib, start=1)]


def test_a_leak_is_told_with_its_size_and_what_is_left() -> None:
    found = steady_growth(samples(*(500 + 8 * number for number in range(20))), 4 * GIB)
    assert found is not None
    assert found.step_bytes == pytest.approx(2 * MIB)
    assert found.steps_left == (4096 - 652) // 2
    assert found.frac == pytest.approx(152 / 4096)
    assert "2.0 MiB with every step" in found.words


@pytest.mark.parametrize(
    "used",
    [
        [500.0] * 20,
        [500 + 100 * min(number, 5) for number in range(20)],  # filled once
        [500 + 100 * (number % 2) for number in range(20)],  # up and down
        [900 - number for number in range(20)],
        [500 + 0.1 * number for number in range(20)],  # full after a day
        [500 + 8 * number for number in range(7)],  # too few samples
    ],
)
def test_what_does_not_grow_for_ever_is_no_leak(used: list[float]) -> None:
    assert steady_growth(samples(*used), 4 * GIB) is None


def test_what_is_full_within_minutes_is_told_however_short_the_steps_are() -> None:
    used = samples(*(500 + 0.5 * number for number in range(20)))
    assert steady_growth(used, 4 * GIB) is None
    found = steady_growth(used, 4 * GIB, step_s=0.0003)
    assert found is not None
    assert "grows by 128 KiB with every step" in found.words


def test_where_nobody_tells_the_limit_nothing_is_said() -> None:
    assert steady_growth(samples(*(500 + 8 * number for number in range(20))), 0) is None


def test_memory_is_read_as_it_is() -> None:
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)  # earlier tests may have left free memory in the heap
    before = memory_in_use()
    kept = torch.ones(96 * MIB // 4)
    assert memory_in_use() - before > 64 * MIB
    assert kept.numel()
    assert memory_limit() > memory_in_use()


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, [(4, 7), (8, 7)]), (60.0, [(4, 7)])])
def test_a_recorder_asks_every_few_steps_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, asked: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr("hasten.script.watch.record.MEMORY_S", seconds)
    recorder = Recorder(memory=lambda: 7)
    for _ in range(9):
        recorder.before_step()
        recorder.after_step(1)
    assert report(recorder)["memory"] == asked
    recorder.restart()
    assert not recorder.memory


def test_memory_is_read_often_enough_in_the_shortest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.script.watch.record.perf_counter", lambda: 0.0)
    recorder = Recorder(updates=200, memory=lambda: recorder.num_steps * MIB)
    for _ in range(200):
        recorder.before_step()
        recorder.after_step(1)
    assert steady_growth(list(recorder.memory), 4 * GIB) is not None


def found(used: list[tuple[int, int]]) -> dict[str, Any]:
    seconds = [[1.0 if name == "forward" else 0.0 for name in PHASES]] * 10
    return {
        "steps": 10, "phases": list(PHASES), "seconds": seconds, "tail": [0.0] * len(PHASES), "places": [], "ended": False,
        "fetch_wait_frac": 0.0, "own_cost_frac": 0.0, "device": "cpu", "memory": used, "memory_limit_bytes": 4 * GIB,
    }  # fmt: skip


def test_a_profile_names_memory_first_and_what_takes_the_time_next() -> None:
    told = make_profile(found(samples(*(500 + 8 * number for number in range(20)))))["bottleneck"]
    assert told["name"] == "memory"
    assert "grows by 2.0 MiB" in told["words"]
    assert "The model itself" in told["words"]
    assert make_profile(found(samples(*[500.0] * 20)))["bottleneck"]["name"] == "compute"
