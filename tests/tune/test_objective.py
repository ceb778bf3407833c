"""The objectives: time, memory within a slowdown, or a cheap run; in the search, in the proof and in messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.core.card import Numerics
from hasten.core.errors import HastenError
from hasten.report import parse
from hasten.report.words import headline
from hasten.tune.objective import Goal, Objective, run_cost
from hasten.tune.proof.numerics import GateVerdict
from hasten.tune.search.screening import Screening
from tests.optimizations.contract import facts
from tests.report.sample import full
from tests.tune.jobs import write_job
from tests.tune.test_final_proof import proof_in, with_peaks
from tests.tune.test_search import FakeScreen, make, measured, outcomes, reason, technique

PASSED = GateVerdict(numerics=Numerics.EXACT, verdict="passed", why="bit-equal")


def screening(ratio: float, *, memory: float = 1.0, setup_s: float = 0.0) -> Screening:
    """Return a screening with a ratio of speeds and of peak memory."""
    evidence = [{"name": "seen", "passed": True, "seen": "1"}]
    peaks = {"A": 1000, "B": int(1000 * memory)}
    return Screening(comparison=measured(ratio), gate=PASSED, evidence=evidence, setup_s=setup_s, peak_bytes=peaks)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"max_slowdown": 0.9}, "at least 1"),
        ({"max_slowdown": float("nan")}, "at least 1"),
        ({"goal": Goal.COST}, "needs this machine's price"),
        ({"goal": Goal.COST, "price_per_hour": 0.0}, "needs this machine's price"),
        ({"goal": Goal.MEMORY, "price_per_hour": 2.0}, "needs --objective cost"),
    ],
)
def test_an_invalid_objective_is_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(HastenError, match=message):
        Objective(**wanted)


def test_a_limit_for_another_objective_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["tune", write_job(tmp_path), "--out", str(tmp_path / "out"), "--max-slowdown", "1.2"])
    assert isinstance(found.exception, HastenError)
    assert "applies to --objective memory" in str(found.exception)
    assert not (tmp_path / "out").exists()


def test_for_memory_only_memory_savers_are_tried_free_ones_first() -> None:
    kinds = [
        technique("quick", gain=0.6),
        technique("again", gain=0.0, memory_technique=True, saves_memory=True, prior=0.9),
        technique("smaller", gain=0.0, saves_memory=True, prior=0.1),
    ]
    screen = FakeScreen(answers={"again": screening(0.8, memory=0.6), "smaller": screening(1.1, memory=0.9)})
    search = make(kinds, screen, objective=Objective(goal=Goal.MEMORY))
    search.run()
    assert screen.tried == ["smaller", "again"]
    assert outcomes(search) == {"quick": "refused", "smaller": "applied", "again": "applied"}
    assert "does not lower peak memory" in reason(search, "quick")
    assert "saves 40% of the memory" in reason(search, "again")
    search.prune()
    assert screen.tried == ["smaller", "again"], "a technique kept for its memory must not be removed for its time"


def test_slowdowns_add_up_to_the_limit() -> None:
    kinds = [technique(name, gain=0.0, saves_memory=True, prior=prior) for name, prior in (("one", 0.9), ("two", 0.5))]
    answers = {"one": screening(0.8, memory=0.8), "two": screening(0.8, memory=0.8)}
    allowed = make(kinds, FakeScreen(answers=answers), objective=Objective(goal=Goal.MEMORY, max_slowdown=1.7))
    allowed.run()
    assert outcomes(allowed) == {"one": "applied", "two": "applied"}
    strict = make(kinds, FakeScreen(answers=answers), objective=Objective(goal=Goal.MEMORY, max_slowdown=1.4))
    strict.run()
    assert outcomes(strict) == {"one": "applied", "two": "refused"}
    assert "the limit is 1.40 times" in reason(strict, "two")


def test_a_small_saving_is_refused() -> None:
    screen = FakeScreen(answers={"thin": screening(1.2, memory=0.97)})
    kinds = [technique("thin", gain=0.0, saves_memory=True)]
    search = make(kinds, screen, objective=Objective(goal=Goal.MEMORY))
    search.run()
    assert outcomes(search) == {"thin": "refused"}
    assert "-3%" in reason(search, "thin")


@pytest.mark.parametrize(("goal", "outcome"), [(Goal.COST, "refused"), (Goal.TIME, "applied")])
def test_for_cost_the_set_up_must_pay_off(goal: Goal, outcome: str) -> None:
    screen = FakeScreen(answers={"slow_start": screening(1.25, setup_s=40.0)})
    wanted = Objective(goal=goal, price_per_hour=2.0 if goal is Goal.COST else None)
    search = make([technique("slow_start")], screen, on=facts(job={"planned_updates": 1000}), objective=wanted)
    search.run()
    assert outcomes(search) == {"slow_start": outcome}
    assert ("the run has 1000" in reason(search, "slow_start")) == (outcome == "refused")


def test_a_run_costs_its_hours() -> None:
    assert run_cost(step_ms=100.0, setup_s=3600.0, updates=36_000, price_per_hour=2.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("ratio", "peak", "why"),
    [(0.8, 500, ""), (0.8, 950, "by only 5%"), (0.5, 500, "2.0"), (1.3, 500, "")],
    ids=["enough", "too little saved", "too slow", "faster as well"],
)
def test_the_proof_of_a_memory_plan(tmp_path: Path, ratio: float, peak: int, why: str) -> None:
    wanted = Objective(goal=Goal.MEMORY, max_slowdown=1.5)
    proof = proof_in(tmp_path, {"precision": {}}, objective=wanted)
    comparison = with_peaks(measured(ratio), baseline=1000, tuned=peak)
    proof._adopt(proof.record.applied_plan(), comparison, None)
    assert proof.record.proved is not bool(why)
    assert why in proof.record.candidates[0].reason
    objective = proof.record.evidence.objective
    assert objective is not None
    assert (objective.goal, objective.max_slowdown, objective.price_per_hour) == ("memory", 1.5, None)


def test_the_headline_matches_the_objective() -> None:
    evidence = full()
    evidence["final"] |= {"ratio": 0.8, "low": 0.75, "high": 0.85, "verdict": "slower", "quality": None}
    evidence["memory"] = {"baseline_peak_bytes": 2**30, "tuned_peak_bytes": 2**29, "limit_bytes": None}
    evidence["objective"] = {"goal": "memory", "max_slowdown": 1.5, "price_per_hour": None}
    told = headline(parse(evidence))
    assert told.big == "50 % less memory"
    assert "1.0 GiB before" in told.detail
    assert told.tone == "good"
    for rung in evidence["rungs"]:
        rung["outcome"] = "refused"
    assert headline(parse(evidence)).big == "Not proved"
    evidence["final"] |= {"ratio": 2.0, "low": 1.9, "high": 2.1, "verdict": "faster"}
    evidence["objective"] |= {"goal": "cost", "price_per_hour": 2.5, "baseline_cost": 4.0, "tuned_cost": 2.0}
    assert "the whole run costs 2 instead of 4" in headline(parse(evidence)).detail
