"""The record: what is written, and that nothing good is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hasten.core.errors import HastenError
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.tune.budget import Budget
from hasten.tune.record import Record
from hasten.tune.search.candidate import Candidate
from tests.tune.jobs import write_job


def make(folder: Path) -> Record:
    target = write_job(folder)
    return Record(target, load_job(target), read_machine(), folder / "out", Budget.begin(60.0))


def rung(outcome: str, name: str = "zero_grad_to_none") -> Candidate:
    seen = {"ratio": 1.2, "low": 1.1, "high": 1.3, "pairs": 5, "verdict": "faster", "samples": []}
    return Candidate(name=name, settings={}, outcome=outcome, reason="measured", comparison=seen)  # type: ignore[arg-type]


def test_the_plan_holds_the_applied_rungs_and_says_that_it_is_not_proved(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.rungs += [rung("applied"), rung("refused", "fused_optimizer")]
    record.save()
    plan = Plan.load(record.out / "hasten.toml", catalogue())
    assert plan.names == ("zero_grad_to_none",)
    assert plan.proved["state"] == "not proved"


def test_an_earlier_tuning_is_set_aside_and_not_overwritten(tmp_path: Path) -> None:
    first = make(tmp_path)
    first.rungs.append(rung("applied"))
    first.finish("done")
    second = make(tmp_path)
    second.set_aside()
    second.save()
    old = json.loads((second.out / "previous" / "evidence.json").read_text(encoding="utf-8"))
    assert [item["name"] for item in old["rungs"]] == ["zero_grad_to_none"]
    assert (second.out / "previous" / "report.html").exists()
    assert json.loads((second.out / "evidence.json").read_text(encoding="utf-8"))["rungs"] == []


def test_taking_up_keeps_what_was_measured_and_looks_again_at_the_rest(tmp_path: Path) -> None:
    first = make(tmp_path)
    untried = Candidate(name="compile", settings={}, outcome="undecided", reason="not tried: no time")
    first.rungs += [rung("applied"), untried]
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
    second.take_up()
    assert [item.name for item in second.rungs] == ["zero_grad_to_none"]
    assert second.applied_plan().names == ("zero_grad_to_none",)


def test_there_must_be_something_to_take_up(tmp_path: Path) -> None:
    with pytest.raises(HastenError, match="nothing to resume"):
        make(tmp_path).take_up()


class _Facts:
    step_ms, peak_memory_bytes, memory_limit_bytes = 1.0, 1, 2
