"""The part of the search that is judged by the time of an epoch: its order, its budget and its results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hasten.core.card import Bottleneck
from hasten.core.errors import TrialError
from hasten.core.facts import Facts
from hasten.core.optimization import Optimization
from hasten.tune.search import by_epoch as module
from hasten.tune.search.candidate import NOT_TRIED
from hasten.tune.search.event_design import design_event
from hasten.tune.search.event_screening import EventScreening
from tests.optimizations.contract import facts
from tests.tune.test_search import FAILED, PASSED, FakeScreen, make, measured, technique

FACTS: Facts = replace(
    facts(job={"updates_per_epoch": 50, "num_samples": 200}),
    step_ms=10.0, epoch_s=0.8, validation_s=0.25, validation_batches=5, checkpoint_s=0.05,
)  # fmt: skip
SOONER = technique("sooner", gain=0.5, relieves=Bottleneck.VALIDATION, event="validation")
SMALL = technique("small", gain=0.3, relieves=Bottleneck.CHECKPOINT, event="checkpoint")
USUAL = technique("usual", gain=0.1)


def play(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> list[str]:
    """Answer every screening of an event with an invented ratio, a failed gate, or an error. Returns the names tried."""
    tried: list[str] = []

    def screened(screen: Any, optimization: Optimization, plan: Any, known: Facts) -> EventScreening:
        name = optimization.card.name
        tried.append(name)
        screen.challenger = type(screen.base)(trial=screen.base.trial, plan=plan)
        answer = answers.get(name, 1.0)
        if isinstance(answer, Exception):
            raise answer
        return EventScreening(
            comparison=measured(abs(answer)), gate=PASSED if answer > 0 else FAILED, setup_s=1.0,
            evidence=[{"name": "seen", "passed": True, "seen": "1"}], peak_bytes={"A": 100, "B": 100},
            design=design_event(optimization, known), lost_s={"A": 0.25, "B": 0.05},
        )  # fmt: skip

    monkeypatch.setattr(module, "screen_event", screened)
    return tried


def outcomes(search: Any) -> dict[str, str]:
    return {candidate.name: candidate.outcome for candidate in search.state.candidates}


def test_events_come_after_updates_and_leave_the_update_screen_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = play(monkeypatch, {"sooner": 1.3, "small": 1.0})
    screen = FakeScreen(answers={"usual": 1.2})
    search = make([SOONER, SMALL, USUAL], screen, on=FACTS)
    search.run()
    assert screen.tried == ["usual"]
    assert tried[0] == "sooner"
    assert outcomes(search)["sooner"] == "applied"
    candidate = next(candidate for candidate in search.state.candidates if candidate.name == "sooner")
    assert candidate.event == "validation"
    assert "of an epoch's time; each validation costs 0.05 s instead of 0.25 s" in candidate.reason
    assert {"usual", "sooner"} <= set(screen.plan.names)


def test_event_costs_are_remembered_and_not_pruned_by_update_time(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"sooner": 1.3})
    screen = FakeScreen(answers={"usual": 1.2})
    search = make([SOONER, USUAL], screen, on=FACTS)
    search.run()
    assert search.state.facts.validation_s == pytest.approx(0.05)
    assert search.state.facts.checkpoint_s == pytest.approx(0.05)
    search.prune()
    assert "without sooner" not in screen.tried
    assert outcomes(search)["sooner"] == "applied"


def test_a_failed_gate_or_a_dead_trial_is_not_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"sooner": -1.3, "small": TrialError("it died", kind="killed")})
    search = make([SOONER, SMALL], FakeScreen(), on=FACTS)
    search.run()
    assert outcomes(search) == {"sooner": "refused", "small": "failed"}
    assert search.screen.plan.names == ()


def test_without_budget_or_a_measured_epoch_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = play(monkeypatch, {"sooner": 1.3})
    short = make([SOONER], FakeScreen(), on=FACTS, seconds=5.0)
    short.run()
    assert short.state.candidates[0].outcome == "undecided"
    assert short.state.candidates[0].reason.startswith(NOT_TRIED)
    unknown = make([SOONER], FakeScreen(), on=replace(FACTS, epoch_s=0.0))
    unknown.run()
    assert outcomes(unknown) == {"sooner": "failed"}
    assert tried == []
