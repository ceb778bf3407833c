"""The runner of benchmarks in parts: which parts it measures, what it keeps, and the goals it lists."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import in_parts, record
from benchmarks.datacube import run as datacube
from benchmarks.dialogue import run as dialogue
from benchmarks.in_parts import run_parts


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the parts by two that are fast, and return which parts each of them found."""
    calls: list[list[str]] = []

    def part(_name: str) -> Any:
        def measure(found: dict[str, Any]) -> dict[str, Any]:
            calls.append(sorted(found))
            return {"goals": {"batch": {"goal": 2.0, "seen": float(len(calls)), "reached": len(calls) >= 2}}}

        return SimpleNamespace(run=measure)

    monkeypatch.setattr(in_parts, "import_module", part)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return calls


def test_measured_parts_are_kept_and_the_goals_of_all_are_listed(measured: list[list[str]]) -> None:
    run_parts("datacube", ["physics"])
    path = run_parts("datacube", ["physics", "job"])
    assert measured == [[], ["physics"]]
    result = json.loads(path.read_text(encoding="utf-8"))
    assert {name: goal["reached"] for name, goal in result["goals"].items()} == {"physics batch": False, "job batch": True}
    assert result["parts"]["physics"]["where"]["commit"] == result["commit"]


def test_again_repeats_a_part_alone(measured: list[list[str]]) -> None:
    run_parts("datacube", ["physics", "job"])
    path = run_parts("datacube", ["physics"], again=True)
    assert len(measured) == 3
    seen = json.loads(path.read_text(encoding="utf-8"))["goals"]
    assert {name: goal["seen"] for name, goal in seen.items()} == {"physics batch": 3.0, "job batch": 2.0}


@pytest.mark.parametrize(("name", "runner"), [("datacube", datacube), ("dialogue", dialogue)])
def test_each_part_is_a_module_with_a_line_in_the_help(name: str, runner: Any) -> None:
    pytest.importorskip("numba")
    for part in runner.PARTS:
        assert callable(import_module(f"benchmarks.{name}.{part}").run)
        assert f"\n{part}  " in (runner.__doc__ or "")
