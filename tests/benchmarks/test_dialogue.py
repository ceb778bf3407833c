"""The parts of the dialogue benchmark run at a small size: they check that all ways give the same."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.dialogue import log_mel, reports, scan, similarity, table


def test_small_parts_run_and_have_rows_in_the_tables() -> None:
    pytest.importorskip("librosa")
    parts: dict[str, Any] = {
        "scan": scan.run({}, talks=60, part=20, rounds=1),
        "reports": reports.run({}, talks=100, rounds=1),
        "similarity": similarity.run({}, rows=3000, rounds=1),
    }
    assert parts["scan"]["mentions_of_part"]["alternation"] <= parts["scan"]["mentions_of_part"]["Hasten"]
    assert parts["similarity"]["goals"]["scattered, recall"]["reached"]
    page = table.ways({"parts": parts})
    assert page.count("\n| ") == 2 + 4
    result = {"goals": {f"scan {name}": goal for name, goal in parts["scan"]["goals"].items()}, "machine": "a machine"}
    assert "| scan speed over a loop of re | 100 |" in table.goals(result)


def test_features_are_compared_with_librosa() -> None:
    pytest.importorskip("librosa")
    found = log_mel._digits(5, 1)
    assert 0 < found["largest_difference"] < log_mel.TOLERANCE
