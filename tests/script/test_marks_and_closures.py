"""Explicit step marks, optimizer closures and framework methods, measured by a clock that the test controls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from hasten.script import steps
from hasten.script.patches import Patches
from hasten.script.watch import frameworks
from hasten.script.watch.frameworks import Frameworks
from hasten.script.watch.record import (
    BACKWARD,
    CHECKPOINT,
    FETCHED,
    FORWARD,
    GAP,
    LOGGING,
    OTHER,
    PHASES,
    VALIDATION,
    Recorder,
)
from hasten.script.watch.seams import with_timed_closure


class Clock:
    """A recorder whose clock advances only by `passes`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in ("record", "frameworks"):
            monkeypatch.setattr(f"hasten.script.watch.{module}.perf_counter", lambda: self.now)
        self.recorder = Recorder(updates=0, seconds=0.0)

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def seam(self, phase: int, seconds: float, idle: int | None = None) -> None:
        self.recorder.enter(phase)
        self.passes(seconds)
        self.recorder.leave(idle)

    def last(self) -> dict[str, float]:
        return {name: value for name, value in zip(PHASES, self.recorder.steps[-1], strict=True) if value}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_mark_ends_a_step_and_an_update_by_hand_is_the_optimizers(clock: Clock) -> None:
    clock.recorder.mark()
    clock.seam(FETCHED, 2, OTHER)
    clock.seam(FORWARD, 3, FORWARD)
    clock.seam(BACKWARD, 4, GAP)
    clock.passes(1)  # the update
    clock.recorder.mark()
    clock.passes(5)
    clock.recorder.mark()
    assert [sum(step) for step in clock.recorder.steps] == [10, 5]
    assert clock.last() == {"other": 5}
    clock.recorder.steps.pop()
    assert clock.last() == {"data": 2, "forward": 3, "backward": 4, "optimizer": 1}


def test_from_the_first_mark_on_optimizers_end_no_step(clock: Clock) -> None:
    for _ in range(3):
        for optimizer in ("judge", "maker"):
            clock.recorder.before_step()
            clock.passes(1)
            clock.recorder.after_step(optimizer)
        clock.recorder.mark()
    assert clock.recorder.num_steps == 3
    assert [sum(step) for step in clock.recorder.steps] == [2, 2]


def test_the_optimizer_of_the_next_fold_makes_the_steps(clock: Clock) -> None:
    for optimizer, times in (("first", 12), ("second", 12), ("third", 12)):
        for _ in range(times):
            clock.recorder.before_step()
            clock.passes(1)
            clock.recorder.after_step(optimizer)
    assert [sum(step) for step in clock.recorder.steps] == [1] * 19  # 11, and 4 for each following fold


def test_optimizers_that_take_turns_do_not_follow_one_another(clock: Clock) -> None:
    for _ in range(4):
        for optimizer, times in (("judge", 10), ("maker", 7)):
            for _ in range(times):
                clock.recorder.before_step()
                clock.passes(1)
                clock.recorder.after_step(optimizer)
    assert [sum(step) for step in clock.recorder.steps].count(8) == 3  # one turn of the generator and one critic step
    assert len(clock.recorder.steps) == 39


def test_a_mark_inside_a_phase_or_of_another_thread_ends_nothing(clock: Clock) -> None:
    clock.recorder.enter(FORWARD)
    clock.recorder.mark()
    clock.recorder.leave()
    clock.recorder.thread = 0
    clock.recorder.mark()
    assert clock.recorder.num_steps == 0


def test_marks_reach_listeners_only() -> None:
    received: list[str] = []

    def first() -> None:
        received.append("first")
        steps.unlisten(first)  # like a watch that has seen enough

    def second() -> None:
        received.append("second")

    steps.listen(first)
    steps.listen(second)
    steps.step()
    steps.step()
    steps.unlisten(second)
    steps.unlisten(second)
    steps.step()
    assert received == ["first", "second", "second"]


def step(clock: Clock, closure: Callable[[], float], *, positional: bool) -> Any:
    """Simulate an optimizer with a closure, between its hooks."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    given = ((optimizer, closure), {}) if positional else ((optimizer,), {"closure": closure})
    clock.recorder.before_step()
    clock.passes(1)
    made = with_timed_closure(clock.recorder, optimizer, *given)
    assert made is not None
    found = (made[0][1] if positional else made[1]["closure"])()
    clock.passes(2)
    clock.recorder.after_step("a")
    return found


@pytest.mark.parametrize("positional", [True, False])
def test_what_a_closure_does_belongs_to_its_phases(clock: Clock, positional: bool) -> None:
    def closure() -> float:
        clock.seam(FORWARD, 3, FORWARD)
        clock.passes(10)  # a loss computed by a plain function
        clock.seam(LOGGING, 5)
        clock.seam(BACKWARD, 4, GAP)
        clock.passes(0.5)
        return 7.0

    step(clock, closure, positional=positional)
    assert step(clock, closure, positional=positional) == 7.0
    assert clock.last() == {"forward": 13, "backward": 4, "logging": 5, "optimizer": 3.5}


def test_a_closure_that_raises_leaves_no_phase_behind(clock: Clock) -> None:
    def closure() -> float:
        clock.seam(FORWARD, 3, FORWARD)
        raise ValueError("in the closure")

    with pytest.raises(ValueError, match="in the closure"):
        step(clock, closure, positional=False)
    assert clock.recorder.free()


def test_only_closures_are_wrapped(clock: Clock) -> None:
    class Odd(torch.optim.SGD):
        def step(self, model: Any = None) -> Any:
            return None if model is None else model()

    parameters = [nn.Parameter(torch.zeros(1))]
    plain, odd = torch.optim.SGD(parameters, lr=0.1), Odd(parameters, lr=0.1)
    assert with_timed_closure(clock.recorder, plain, (plain,), {}) is None
    assert with_timed_closure(clock.recorder, plain, (plain, None), {}) is None
    assert with_timed_closure(clock.recorder, plain, (plain,), {"closure": None}) is None
    assert with_timed_closure(clock.recorder, odd, (odd, lambda: 1.0), {}) is None


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Any:
    """A framework whose trainer evaluates and saves during the evaluation."""

    class Trainer:
        def evaluate(self) -> str:
            clock.passes(3)
            clock.seam(FORWARD, 1) if clock.recorder.takes() else clock.passes(1)
            self.save()
            clock.passes(2)
            return "evaluated"

        def save(self) -> None:
            clock.passes(10)

    made = ModuleType("some_framework")
    made.Trainer = Trainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_framework", made)
    monkeypatch.setattr(frameworks, "METHODS", (
        ("some_framework", "Trainer", "evaluate", VALIDATION), ("some_framework", "Trainer", "save", CHECKPOINT),
        ("some_framework", "Trainer", "no_such_method", LOGGING), ("not_loaded", "Trainer", "evaluate", VALIDATION),
    ))  # fmt: skip
    return Trainer


def test_what_a_framework_evaluates_and_saves_is_told_apart(clock: Clock, framework: Any) -> None:
    before = framework.evaluate
    patches = Patches()
    seams = Frameworks(clock.recorder, patches)
    seams.install()
    wrapped = framework.evaluate
    seams.install()
    assert framework.evaluate is wrapped  # wrapped only once
    clock.recorder.mark()
    assert framework().evaluate() == "evaluated"
    clock.recorder.mark()
    assert clock.last() == {"validation": 6, "checkpoint": 10}
    places = {what: (file, seconds) for (what, file, _), (_, seconds) in clock.recorder.places.items()}
    assert places["Trainer.save"] == (__file__, 10.0)
    patches.restore()
    assert framework.evaluate is before


def test_the_phases_of_frameworks_have_names() -> None:
    assert "Trainer.save_checkpoint" in frameworks.names_of(CHECKPOINT)
    assert "Trainer.evaluate" in frameworks.names_of(VALIDATION)
