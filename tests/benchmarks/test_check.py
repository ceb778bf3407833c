"""The benchmark of checks: its commits, its rates, and that it continues where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import check, record, result_file
from benchmarks.tables.monitor import check_example, check_table, check_words
from hasten.check.check import CheckRequest
from hasten.check.repository import Repository
from hasten.check.result import MemoryChange
from hasten.core.errors import TrialError
from hasten.core.stats import Verdict
from tests.check.test_result import result


def test_the_candidate_is_the_injected_slowdown_and_a_failure_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run_check(request: CheckRequest) -> Any:
        repository = Repository(request.subject.folder)
        with repository.checked_out([repository.base(None), repository.candidate()]) as trees:
            seen.extend((tree / "job.py").read_text().splitlines()[-1].strip() for tree in trees)
        if len(seen) > 2:
            raise TrialError("it broke", kind="raised")
        return result()

    monkeypatch.setattr(check, "run_check", run_check)
    row = check.check_once(0.05, 0, 10.0)
    assert seen == ["drag_frac = 0.0", "drag_frac = 0.05"]
    assert (row["verdict"], row["injected_frac"], len(row["sessions"])) == ("slower", 0.05, 2)
    assert check.check_once(0.05, 1, 10.0)["verdict"] == "failed"


def test_an_interrupted_run_continues_and_counts_rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    verdicts = {0.0: ["same", "slower", "same", "faster"], 0.1: ["slower", "undecided", "slower", "failed"]}
    taken: list[tuple[float, int]] = []

    def check_once(frac: float, number: int, budget_s: float) -> dict[str, Any]:
        if len(taken) == 3:
            taken.append((frac, -1))
            raise KeyboardInterrupt
        taken.append((frac, number))
        return {
            "injected_frac": frac,
            "number": number,
            "verdict": verdicts[frac][number],
            "headline": "",
            "seconds": 1.0,
            "ratio": 1.0 / (1.0 + frac),
        }

    monkeypatch.setattr(check, "check_once", check_once)
    for module in (record, result_file):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        check.run_checks(4, 10.0, (0.0, 0.1))
    path = check.run_checks(4, 10.0, (0.0, 0.1))
    assert [place for place in taken if place[1] >= 0] == [(frac, number) for frac in (0.0, 0.1) for number in range(4)]
    written = json.loads(path.read_text())
    assert written["kinds"]["aa"]["changed_frac"] == 0.5
    assert written["kinds"]["plus_10_percent"]["slower_frac"] == 0.5
    assert written["kinds"]["plus_10_percent"]["verdicts"]["failed"] == 1
    assert [kind["median_longer_frac"] for kind in written["kinds"].values()] == pytest.approx([0.0, 0.1])
    assert len(written["rows"]) == 8
    assert "| 10 % longer | 4 | 0 | 0 | 2 | 1 | 1 | +10.0 % | 1 s |" in check_table({"check": written})
    assert check_words(written) == "2 false verdicts on 4 unchanged ones; slower by 10 %: 2 of 4 found"
    assert Verdict.SLOWER in written["kinds"]["aa"]["verdicts"]


def test_the_example_shows_what_a_slower_check_printed() -> None:
    slower = result(equal_losses=True, memory=MemoryChange(base_bytes=1e9, candidate_bytes=1e9, ratio=1.0, verdict="same"))
    checks = [
        {"injected_frac": frac, **found.to_dict()}
        for frac, found in ((0.2, slower), (0.1, result(Verdict.SAME)), (0.1, slower))
    ]
    example = check_example({"check": {"rows": [{"check": row} for row in checks]}})
    assert example.splitlines()[1:-1] == [*slower.details(), slower.headline]
    assert check_example({"check": {"rows": [{"check": checks[0]}]}}).startswith("Not measured yet")
