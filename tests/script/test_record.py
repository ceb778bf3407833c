"""The assignment of time to phases, and the definition of a step."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn

from hasten.core.errors import TrialError
from hasten.script.entry.hooks import is_agent
from hasten.script.watch import overhead
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.lead_optimizer import MAX_KNOWN, STEPS_ALONE, Leader, Serials
from hasten.script.watch.profile import ceilings, diagnose_script, logging_writes, make_profile, phase_seconds, where
from hasten.script.watch.record import (
    ACTING,
    BACKWARD,
    DATA,
    FETCHED,
    FORWARD,
    FULL_ONE_IN,
    GAP,
    LOGGING,
    OPTIMIZER,
    OTHER,
    PHASES,
    RESTS_FROM,
    TENTATIVE,
    VALIDATION,
    Recorder,
    Usual,
    is_light,
    report,
)
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

NAMES = list(PHASES)


class Script:
    """A scripted clock. Each entry of `play` is a phase and its duration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("hasten.script.watch.record.perf_counter", lambda: self.now)
        self.recorder = Recorder(updates=0, seconds=0.0)

    def seam(self, phase: int, seconds: float, idle: int | None = None) -> None:
        self.recorder.enter(phase)
        self.now += seconds
        self.recorder.leave(idle)

    def step(self, seconds: float, key: str = "a") -> None:
        self.recorder.before_step()
        self.now += seconds
        self.recorder.after_step(key)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


def last(script: Script) -> dict[str, float]:
    return {name: round(value, 6) for name, value in zip(PHASES, script.recorder.steps[-1], strict=True) if value}


def test_no_two_objects_have_one_serial_though_one_stands_where_the_other_was() -> None:
    class Thing:
        pass

    serials, kept = Serials(), Thing()
    first, places, numbers = serials.of(kept), set(), set()
    for _ in range(3 * MAX_KNOWN):
        thing = Thing()
        places.add(id(thing))
        numbers.add(serials.of(thing))
        assert serials.of(thing) in numbers
        del thing
    assert len(numbers) == 3 * MAX_KNOWN > len(places)
    assert serials.of(kept) == first not in numbers
    held = [Thing() for _ in range(MAX_KNOWN + 1)]  # all are alive, so none is forgotten
    assert [serials.of(thing) for thing in held] == [serials.of(thing) for thing in held]


def test_optimizers_created_at_every_step_neither_lead_nor_fill_the_memory() -> None:
    leader = Leader()
    places = [leader.stepped("outer")]
    for task in range(3 * MAX_KNOWN):
        places += [leader.stepped(("inner", task)), leader.stepped("outer")]
    assert places == ["leads", *["extra", "leads"] * (3 * MAX_KNOWN)]
    assert len(leader._counts) <= MAX_KNOWN
    assert [leader.stepped("next") for _ in range(STEPS_ALONE)] == ["extra"] * (STEPS_ALONE - 1) + ["takes over"]


def test_a_step_is_split_into_its_phases(script: Script) -> None:
    script.step(1)
    script.seam(FETCHED, 2, OTHER)
    script.now += 0.5
    script.seam(FORWARD, 3, FORWARD)
    script.now += 0.25  # a loss computed by a plain function
    script.seam(BACKWARD, 4, GAP)
    script.now += 0.125  # clipping
    script.seam(LOGGING, 1)
    script.now += 0.125
    script.step(5)
    assert last(script) == {
        "data": 2, "forward": 3.25, "backward": 4, "optimizer": 5.125, "logging": 1, "other": 0.625,
    }  # fmt: skip
    assert sum(last(script).values()) == 16


def test_time_before_the_optimizers_step_is_the_optimizers(script: Script) -> None:
    script.step(1)
    script.seam(BACKWARD, 4, GAP)
    script.now += 2
    script.step(1)
    assert last(script) == {"backward": 4, "optimizer": 3}


def test_micro_batches_between_two_steps_are_one_step(script: Script) -> None:
    script.step(1)
    for _ in range(3):
        script.seam(FETCHED, 1, OTHER)
        script.seam(FORWARD, 1, FORWARD)
        script.seam(BACKWARD, 1, GAP)
    script.step(1)
    assert last(script) == {"data": 3, "forward": 3, "backward": 3, "optimizer": 1}
    assert len(script.recorder.steps) == 1


def test_what_is_fetched_for_an_evaluation_is_validation(script: Script) -> None:
    script.step(1)
    script.seam(FETCHED, 2, VALIDATION)
    script.seam(VALIDATION, 3, VALIDATION)
    script.now += 1
    script.seam(FETCHED, 5, OTHER)
    script.seam(FORWARD, 1, FORWARD)
    script.step(1)
    assert last(script) == {"validation": 6, "data": 5, "forward": 1, "optimizer": 1}


@pytest.mark.parametrize(("trains", "name"), [(True, "forward"), (False, "validation")])
def test_backward_tells_what_a_pass_in_eval_mode_was(script: Script, trains: bool, name: str) -> None:
    script.step(1)
    script.seam(TENTATIVE, 3, OTHER)
    if trains:
        script.seam(BACKWARD, 1, GAP)
    script.step(1)
    assert last(script)[name] == 3


def test_the_optimizer_that_steps_most_makes_the_steps(script: Script) -> None:
    script.step(1, "generator")
    for _ in range(4):
        for _ in range(3):
            script.step(1, "critic")
        script.step(1, "generator")
    assert [sum(step) for step in script.recorder.steps][-4:] == [1.0, 2.0, 1.0, 1.0]


def test_closures_of_one_step_count_once(script: Script) -> None:
    script.step(1)
    script.recorder.before_step()
    for _ in range(3):
        assert script.recorder.takes()
        assert not script.recorder.free()
        script.seam(FORWARD, 1)
        script.seam(BACKWARD, 1)
    script.now += 1
    script.recorder.after_step("a")
    assert last(script) == {"forward": 3, "backward": 3, "optimizer": 1}


def test_a_step_that_raised_does_not_swallow_the_next(script: Script) -> None:
    script.step(1)
    script.recorder.before_step()
    script.step(2)
    assert len(script.recorder.steps) == 1
    assert script.recorder.free()


def test_it_stops_after_enough_steps(script: Script) -> None:
    script.recorder.updates = 3
    stopped = []
    script.recorder.on_stop = lambda: stopped.append(script.recorder.num_steps)
    for _ in range(6):
        script.step(1)
    assert stopped == [4]  # the first step has no beginning
    assert len(script.recorder.steps) == 3


def test_memory_is_bounded(script: Script) -> None:
    for at in range(2000):
        script.step(1)
        script.recorder.note("print", "train.py", at, 0.1)
    assert len(script.recorder.steps) == 512
    assert len(script.recorder.places) == 256


def kind(trained: Trained, module: nn.Module, *, grad: bool, evaluating: bool = False) -> int:
    with torch.set_grad_enabled(grad):
        return trained.kind(module, evaluating=evaluating)


def test_what_a_forward_pass_is_for() -> None:
    model, teacher, trained = nn.Linear(2, 2), nn.Linear(2, 2).eval(), Trained()
    trained.learn(torch.optim.SGD(model.parameters(), lr=0.1))
    assert kind(trained, model, grad=True) == FORWARD
    assert kind(trained, teacher, grad=False) == FORWARD  # a teacher runs in every step
    assert kind(trained, nn.Sequential(model).eval(), grad=False) == VALIDATION
    assert kind(trained, model.eval(), grad=True) == TENTATIVE
    assert kind(trained, nn.MSELoss(), grad=False, evaluating=True) == VALIDATION
    model.train()
    assert kind(trained, model, grad=False) == ACTING  # what follows decides: a generator makes samples for its critic
    trained.fetched_with_grad = False
    assert kind(trained, model, grad=False) == VALIDATION


def test_a_module_is_known_by_its_identity() -> None:
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    mine, other, trained = Equal(2, 2), Equal(2, 2), Trained()
    trained.learn(torch.optim.SGD(mine.parameters(), lr=0.1))
    assert trained.holds(mine)
    assert not trained.holds(other)
    assert trained.holds(mine)
    for _ in range(5000):
        trained.holds(nn.Linear(1, 1))  # a freed module is not confused with the next one at its address
    assert not trained.holds(nn.Linear(1, 1))
    assert len(trained._known) <= 4096


def found(
    *, data: float = 0.0, forward: float = 1.0, checkpoint: float = 0.0, logging: float = 0.0, steps: int = 10
) -> dict[str, Any]:
    step = [0.0] * len(PHASES)
    step[DATA], step[FORWARD], step[LOGGING] = data, forward, logging
    step[NAMES.index("checkpoint")] = checkpoint
    return {
        "phases": NAMES, "seconds": [list(step) for _ in range(steps)], "tail": [0.0] * len(PHASES), "ended": False,
        "device": "cpu", "own_cost_frac": 0.0, "fetch_wait_frac": 0.9,
        "places": [["dataset", "train.py", 7, steps, data * steps], ["print", "train.py", 9, steps, 1e-4]],
    }  # fmt: skip


def test_the_ceiling_of_the_input_is_what_the_replay_saved_and_at_most_the_phase() -> None:
    assert ceilings(found(data=3), found(forward=2), None)["input"] == pytest.approx(2.0)
    assert ceilings(found(data=3), found(data=1), None)["input"] == pytest.approx(
        4.0
    )  # the remaining time of the phase counts as free too
    busy = {"fetch_wait_frac": 0.0}
    assert ceilings({**found(data=3), **busy}, found(forward=0.5), None)["input"] == pytest.approx(4.0)
    slower = ceilings({**found(data=3), **busy}, found(forward=1.9), None)  # another moment, when all the machine was slower
    assert slower["input"] == pytest.approx(4.0)
    assert ceilings(found(data=3), found(forward=0.5), None)["input"] > 4.0  # after waiting, other phases are slower too
    workers = {**busy, "has_workers": True}
    assert ceilings({**found(data=3), **workers}, found(forward=0.5), None)["input"] > 4.0  # workers took cores from others
    assert ceilings(found(data=3), found(forward=9), None)["input"] == 1.0
    assert ceilings(found(data=3), None, None)["input"] == pytest.approx(4.0)  # too few steps for a replay


def test_a_checkpoints_ceiling_is_its_share() -> None:
    assert ceilings(found(checkpoint=1), None, None)["checkpoint"] == pytest.approx(2.0)


def test_a_profile_names_the_bottleneck_and_the_line() -> None:
    shown = make_profile(found(data=3), found(data=0))
    assert shown["bottleneck"]["name"] == "input"
    assert shown["bottleneck"]["share"] == pytest.approx(0.75)
    assert "train.py:7 (dataset)" in shown["bottleneck"]["words"]
    assert "mostly waits" in shown["bottleneck"]["words"]
    assert [(line["what"], line["line"]) for line in shown["where"]] == [("dataset", 7)]
    assert make_profile(found())["bottleneck"]["name"] == "compute"
    assert where(found()) == []


def test_every_sentence_about_a_script_names_what_was_measured() -> None:
    growing = [(4 * number, (500 + 8 * number) << 20) for number in range(1, 20)]
    changes: list[dict[str, Any]] = [
        {},
        {"places": []},
        {"fetch_wait_frac": None},
        {"memory": growing, "memory_limit_bytes": 1 << 32},
    ]
    shapes = [
        {**found(data=data, forward=forward, checkpoint=checkpoint, logging=logging), **more}
        for data, checkpoint, logging, forward in itertools.product((0, 3), (0, 2), (0, 1), (0, 1))
        for more in changes
        if data + checkpoint + logging + forward
    ]
    for real in shapes:
        phases, _ = phase_seconds(real)
        whole = sum(phases.values())
        shares = {name: seconds / whole for name, seconds in phases.items()}
        sentences = diagnose_script(real, shares, ceilings(real, None, None), []).sentences
        known = {f"phases.{name}" for name in PHASES}
        known |= {"places"} if real["places"] else set()
        known |= {"wait_frac"} if real["fetch_wait_frac"] is not None else set()
        known |= {"logging_writes"} if logging_writes(real) is not None else set()
        known |= {"memory"} if "memory" in real else set()
        for sentence in sentences:
            assert sentence.measured
            assert set(sentence.measured) <= known, sentence
        said = " ".join(sentence.words for sentence in sentences)
        assert ("train.py" in said) <= bool(real["places"])
        assert ("on real data" in said) is False  # padding was not measured
        assert make_profile(real)["bottleneck"]["words"] == said


def test_ceilings_say_whether_a_run_measured_them() -> None:
    assert make_profile(found(data=3), found(forward=2))["ran"] == ["input"]
    assert make_profile(found(data=3))["ran"] == []


@pytest.mark.parametrize("hooked", [False, True])
def test_an_optimizer_that_steps_inside_of_backward_leaves_backward_its_time(
    hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(monkeypatch)
    for _ in range(3):
        script.seam(FORWARD, 1.0, FORWARD)
        script.recorder.enter(BACKWARD)
        for key, seconds in (("a", 2.0), ("b", 4.0)):
            script.now += seconds
            script.recorder.before_step()
            script.now += 0.5
            if hooked:
                script.recorder.leave(OTHER)
            script.recorder.after_step(key)
        script.recorder.leave(GAP)
    assert script.recorder.steps[-1][BACKWARD] == pytest.approx(6.0)
    assert script.recorder.steps[-1][OPTIMIZER] == pytest.approx(1.0)
    assert script.recorder.steps[-1][FORWARD] == pytest.approx(1.0)
    assert script.recorder.steps[-1][OTHER] == 0.0


class Fetched(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that wait or compute for the same time."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.process_time() + 0.02
        time.sleep(0.02) if self.waits else None
        while not self.waits and time.process_time() < end:
            pass
        return torch.zeros(2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_is_told_from_computing_in_worker_processes_too(workers: int) -> None:
    found = {}
    for waits in (False, True):
        recorder = Recorder(updates=0, seconds=0.0)
        seams = Seams(recorder, Fetch(recorder, Trained()))
        seams.install(excepthook=False)
        try:
            for _ in torch.utils.data.DataLoader(Fetched(waits=waits), batch_size=2, num_workers=workers):
                pass
        finally:
            seams.remove()
        found[waits] = report(recorder)["fetch_wait_frac"]
    if sys.platform != "linux" and workers:
        assert set(found.values()) == {None}
    else:
        assert found[True] > max(found[False], 0.5)


def test_the_first_steps_do_not_count_where_there_are_more() -> None:
    seen = found(steps=6)
    seen["seconds"][0][FORWARD] = 100.0
    assert phase_seconds(seen) == ({**dict.fromkeys(PHASES, 0.0), "forward": 4.0}, 4)


def test_what_follows_the_last_step_counts_where_the_script_ended() -> None:
    seen = found(steps=6)
    seen["tail"] = [9.0] * len(PHASES)
    assert phase_seconds(seen)[0]["checkpoint"] == 0.0
    seen["ended"] = True
    seconds, _ = phase_seconds(seen)
    assert (seconds["checkpoint"], seconds["validation"], seconds["other"]) == (9.0, 9.0, 0.0)


def test_a_script_without_steps_is_refused() -> None:
    with pytest.raises(TrialError, match="fewer than two optimizer steps"):
        make_profile(found(steps=0))


def test_the_report_adds_up() -> None:
    recorder = Recorder()
    for _ in range(4):
        recorder.enter(FORWARD)
        time.sleep(0.001)
        recorder.leave(FORWARD)
        recorder.before_step()
        recorder.after_step("a")
    seen = report(recorder, ended=True)
    assert seen["steps"] == len(seen["seconds"]) == 3
    assert all(step[FORWARD] > step[OPTIMIZER] for step in seen["seconds"])
    assert 0 < seen["own_cost_frac"] < 1


def test_what_is_passed_without_a_note_is_counted_and_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder()
    seams = Seams(recorder, Fetch(recorder, Trained()))
    seams.install()
    try:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    finally:
        seams.remove()
    assert recorder.passed == 2 * 4  # inner modules of the two counted steps
    monkeypatch.setattr(overhead, "of_seams", lambda make: (0.0, overhead.passing_s(make())))
    cost = report(recorder)["own_cost_frac"]
    assert 0 < cost < 1
    recorder.passed *= 2
    monkeypatch.setattr(overhead, "of_seams", lambda _make: (0.0, 1e-6))
    assert report(recorder)["own_cost_frac"] == pytest.approx(16e-6 / sum(map(sum, recorder.steps)))


def test_a_watch_that_rests_sees_one_step_of_four_and_everything_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now, full, woken = 0.0, 0, 0
    monkeypatch.setattr("hasten.script.watch.record.perf_counter", lambda: now)
    recorder = Recorder(updates=0, seconds=0.0, rests=True)
    places = 0
    for step in range(400):
        seen = not recorder.light
        full += recorder.stands_for == FULL_ONE_IN
        for phase, seconds, idle in ((FETCHED, 1.0, OTHER), (FORWARD, 2.0, FORWARD), (BACKWARD, 4.0, GAP)):
            if seen:
                recorder.enter(phase)
            now += seconds
            if seen:
                recorder.leave(idle)
        recorder.before_step()
        now += 1.0
        if found := recorder.worth_a_look("optimizer", 1.0):
            places += found[0]
        recorder.after_step("a")
        if step % 7 == 3:  # an evaluation at the beginning of the next step
            woken += recorder.light
            recorder.enter(VALIDATION)
            now += 16.0
            recorder.leave(VALIDATION)
            assert not recorder.light
            recorder.enter(FETCHED)
            recorder.leave(OTHER)
    steps = list(recorder.steps)
    assert full == pytest.approx((400 - RESTS_FROM) / FULL_ONE_IN, rel=0.15)
    assert woken > 30
    assert places == pytest.approx(400, rel=0.15)
    assert sum(map(sum, steps)) == pytest.approx(now, rel=0.03)  # the first step and the time after the last do not count
    total = {name: sum(step[at] for step in steps) for at, name in enumerate(PHASES)}
    assert total["validation"] == 16.0 * 57
    for name, seconds in (("data", 1), ("forward", 2), ("backward", 4), ("optimizer", 1)):
        assert total[name] == pytest.approx(399 * seconds, rel=0.02), name


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 16])
def test_the_steps_that_are_looked_at_follow_no_period(period: int) -> None:
    for at in range(period):
        seen = [not is_light(step) for step in range(64 + at, 6400, period)]
        assert sum(seen) / len(seen) == pytest.approx(1 / FULL_ONE_IN, abs=0.06)


def test_one_long_step_does_not_decide_what_is_usual() -> None:
    usual = Usual(3, rare=(2,))
    usual.learn([0.0, 1000.0, 5.0])
    for _ in range(64):
        usual.learn([1.0, 1.0, 0.0])
    assert usual.divided(8.0) == pytest.approx([4.0, 4.0, 0.0], rel=0.02)
    assert sum(Usual(3, rare=()).divided(8.0)) == 0.0  # nothing is known yet


def test_a_watch_that_does_not_rest_sees_every_step() -> None:
    recorder = Recorder(updates=0, seconds=0.0)
    for _ in range(3 * RESTS_FROM):
        recorder.before_step()
        recorder.after_step("a")
        assert (recorder.light, recorder.stands_for) == (False, 1)


def test_a_line_is_looked_for_once_a_millisecond_and_stands_for_what_went_before() -> None:
    recorder = Recorder()
    asked = [recorder.worth_a_look("optimizer", 0.0004) for _ in range(6)]
    third, sixth = [found for found in asked if found is not None]
    assert asked[2] is third
    assert asked[5] is sixth
    assert third == sixth
    assert (third[0], round(third[1], 9)) == (3, 0.0012)
    assert recorder.worth_a_look("fetched", 0.2) == (1, 0.2)
    recorder.worth_a_look("fetched", 0.0009)
    recorder.restart()
    assert recorder.worth_a_look("fetched", 0.0009) is None


@pytest.mark.parametrize(
    ("command", "agent"),
    [
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "/opt/bin/torchrun", "train.py"], True),
        (["python", "-u", "train.py", "-m", "torch.distributed.run"], False),
        (["python", "-m", "package.train"], False),
        (["python"], False),
    ],
)
def test_who_starts_ranks(command: list[str], agent: bool) -> None:
    assert is_agent(command) == agent


def test_this_process_is_not_watched() -> None:
    assert "HASTEN_ATTACH" not in os.environ
    assert nn.Module.__call__.__name__ == "_wrapped_call_impl"
