"""The record: what is written, and that no good result is lost."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hasten.core.errors import HastenError
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.core.stats import Verdict
from hasten.optimizations import catalogue
from hasten.report.evidence import Candidate, Comparison, Outcome
from hasten.tune.budget import Budget
from hasten.tune.objective import TIME
from hasten.tune.record import Record, new_evidence


def make(folder: Path) -> Record:
    machine = read_machine()
    evidence = new_evidence(
        target="job.py:J", name="J", fingerprint="f", commands=("hasten tune job.py:J",), machine=machine, ranks=1,
        budget_s=60.0, objective=TIME,
    )  # fmt: skip
    return Record(evidence, machine, folder / "out", Budget.begin(60.0))


def candidate(outcome: Outcome, name: str = "zero_grad_to_none") -> Candidate:
    measured = Comparison(ratio=1.2, low=1.1, high=1.3, pairs=5, verdict=Verdict.FASTER, samples=())
    return Candidate(name=name, settings={}, outcome=outcome, reason="measured", comparison=measured)


def test_the_plan_has_the_applied_candidates_and_is_marked_not_proved(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.candidates += [candidate("applied"), candidate("refused", "fused_optimizer")]
    record.save()
    plan = Plan.load(record.out / "hasten.toml", catalogue())
    assert plan.names == ("zero_grad_to_none",)
    assert plan.proved["state"] == "not proved"


def test_files_of_an_earlier_tuning_are_moved_and_not_overwritten(tmp_path: Path) -> None:
    first = make(tmp_path)
    first.candidates.append(candidate("applied"))
    first.finish("done")
    second = make(tmp_path)
    second.move_previous()
    second.save()
    old = json.loads((second.out / "previous" / "evidence.json").read_text(encoding="utf-8"))
    assert [item["name"] for item in old["rungs"]] == ["zero_grad_to_none"]
    assert (second.out / "previous" / "report.html").exists()
    assert json.loads((second.out / "evidence.json").read_text(encoding="utf-8"))["rungs"] == []
    assert make(tmp_path).move_previous() == second.out / "previous-2"
    assert (second.out / "previous" / "report.html").exists()
    assert make(tmp_path).move_previous() is None


def test_resuming_keeps_measured_candidates_and_retries_the_rest(tmp_path: Path) -> None:
    first = make(tmp_path)
    untried = Candidate(name="compile", settings={}, outcome="undecided", reason="not tried: no time")
    first.candidates += [candidate("applied"), untried]
    first.note_profile(
        {
            "bottleneck": {"name": "compute", "share": 1.0, "words": "w"},
            "phases": {},
            "ceilings": {},
            "own_cost_frac": 0.0,
            "job": {},
        },
        _Facts(),  # type: ignore[arg-type]
    )
    first.finish("interrupted")
    second = make(tmp_path)
    second.resume()
    assert [item.name for item in second.candidates] == ["zero_grad_to_none"]
    assert second.applied_plan().names == ("zero_grad_to_none",)


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(HastenError, match="nothing to resume"):
        make(tmp_path).resume()


class _Facts:
    job = SimpleNamespace(num_samples=100)
    step_ms, peak_memory_bytes, memory_limit_bytes = 1.0, 1, 2
