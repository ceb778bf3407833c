"""Screening with real resident processes, and the data that the search and the proof need from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.core.card import Numerics
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import MIN_FLOOR_FRAC, Interval, paired_interval
from hasten.optimizations import catalogue
from hasten.tune.proof.compare import NEIGHBOUR, Comparison
from hasten.tune.proof.numerics import GateVerdict
from hasten.tune.search.job_processes import JobProcesses
from hasten.tune.search.resident_process import Resident
from hasten.tune.search.screening import (
    FUTILE_TURNS,
    LOUD_FRAC,
    LOUD_TURNS,
    MAX_RETAKES,
    NOT_REPEATABLE,
    SLICES,
    TURNS,
    Screen,
    Screening,
    aa_departure,
)
from hasten.tune.trials.pair import turns_that_fit
from hasten.tune.trials.samples import Sample
from hasten.tune.trials.trial import TrialSetting
from hasten.tune.trials.turns import MIN_PARALLEL_TURNS, interleave, join_turns
from tests.optimizations.contract import facts
from tests.tune.jobs import children, write_job
from tests.tune.test_compare import sample

OTHERS = [[2.0 + 0.5 * (update % 3) for update in range(100)]]
JOB = """
class J(Good):
    zero_grad_to_none = False
"""


def one(name: str, **settings: object) -> Optimization:
    return catalogue()[name](**settings)


def plan_of(*optimizations: Optimization) -> Plan:
    return Plan(optimizations=optimizations)


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    folder: Path = tmp_path_factory.mktemp("screen")
    before = children()
    setting = TrialSetting(target=write_job(folder, JOB), folder=folder / "trials", hang_s=60.0)
    found = Screen(JobProcesses(setting=setting), Plan(), uneven=False, others=OTHERS)
    yield found
    found.close()
    assert children() <= before


@pytest.mark.parametrize(("ratio", "departure"), [(1.0, 0.0), (1.05, 0.05), (1 / 1.05, 0.05)])
def test_a_departure_is_the_distance_of_an_aa_ratio_from_one(ratio: float, departure: float) -> None:
    assert aa_departure(Interval(ratio, ratio * 0.98, ratio * 1.02, 5, 0.95)) == pytest.approx(departure)


class _Still:
    """A resident process that answers at once and does nothing."""

    alive = True
    plan = Plan()

    def thaw(self) -> None:
        """Do nothing."""

    freeze = thaw

    def call(self, _operation: str, **_: object) -> dict[str, float]:
        return {"seconds": 0.0}


class _StillProcesses(JobProcesses):
    """Starts resident processes that do nothing."""

    def start(self, plan: Plan) -> Resident:
        return Resident(trial=_Still())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoilt", "taken", "counted"), [((), TURNS, TURNS), ((1, 3), TURNS + 2, TURNS), (range(99), TURNS + MAX_RETAKES, 0)]
)
def test_a_disturbed_turn_is_repeated_and_never_counted(spoilt: Container[int], taken: int, counted: int) -> None:
    class Played(Screen):
        def _turn(self, challenger: Resident, turn: int, updates: int) -> list[Sample]:
            foreign = 0.5 if turn in spoilt else 0.0
            return [
                sample(arm, turn, 1.0 + 0.1 * (turn % 2) + 0.2 * (arm == "B") * (turn % 3), foreign=foreign) for arm in "AB"
            ]

    found = Played(_StillProcesses(setting=TrialSetting(target="", folder=Path())), Plan(), uneven=False, others=OTHERS)
    screening = Screening(comparison=Comparison(kind="screening"))
    found._turns(screening, Resident(trial=_Still()), 3, TURNS)  # type: ignore[arg-type]
    comparison = screening.comparison
    assert len(comparison.samples) == 2 * taken
    assert len(comparison.times("A")) == len(comparison.times("B")) == counted
    assert comparison.retaken == taken - counted
    assert (comparison.interval is None) == (counted == 0)
    assert (NEIGHBOUR in comparison.why) == (counted == 0)


@pytest.mark.slow
def test_calibration_sets_the_floor_and_finds_that_the_job_repeats(screen: Screen) -> None:
    found = screen.calibrate(5)
    assert screen.floor_frac >= MIN_FLOOR_FRAC
    assert found.gate is None
    assert found.evidence == []
    assert screen.repeatable
    turns = len(found.comparison.samples) // 2
    assert FUTILE_TURNS <= turns <= LOUD_TURNS + MAX_RETAKES
    order = "".join(sample.arm for sample in found.comparison.samples)
    assert order == ("ABBA" * LOUD_TURNS)[: 2 * turns]


@pytest.mark.parametrize(
    ("scatters", "asked", "floor"),
    [
        ([0.0], [TURNS], MIN_FLOOR_FRAC),
        ([0.3, 0.0], [TURNS, LOUD_TURNS], MIN_FLOOR_FRAC),
        ([0.2, 0.4], [TURNS, LOUD_TURNS], None),  # the second result counts, although it is higher
        ([None], [TURNS], MIN_FLOOR_FRAC),
        ([0.3, None], [TURNS, LOUD_TURNS], None),  # the first result counts if the second has no clean turns
    ],
)
def test_a_noisy_calibration_is_repeated(scatters: list[float | None], asked: list[int], floor: float | None) -> None:
    turns_asked: list[int] = []

    class Played(Screen):
        def screen(  # type: ignore[override]  # the signature that calibrate uses
            self, *_: Any, most_turns: int, **__: Any
        ) -> Screening:
            scatter = scatters[len(turns_asked)]
            turns_asked.append(most_turns)
            comparison = Comparison(kind="screening")
            if scatter is not None:
                for turn in range(4):
                    times = {"A": 1.0, "B": 1.0 + scatter * (1 if turn % 2 else -1) / 2}
                    comparison.samples += [sample(arm, turn, times[arm]) for arm in "AB"]
                comparison.interval = paired_interval(comparison.times("A"), comparison.times("B"), 0.95)
            return Screening(comparison=comparison)

    found = Played(_StillProcesses(setting=TrialSetting(target="", folder=Path())), Plan(), uneven=False, others=OTHERS)
    found.calibrate(5)
    assert turns_asked == asked
    if floor is not None:
        assert found.floor_frac == pytest.approx(floor)
    else:
        assert found.floor_frac > LOUD_FRAC


@pytest.mark.slow
@pytest.mark.parametrize("repeatable", [False, True])  # the screen is shared: it ends as it was
def test_a_refusal_says_whether_plain_runs_differ_as_well(screen: Screen, repeatable: bool) -> None:
    failed = GateVerdict(numerics=Numerics.EXACT, verdict="failed", why="losses differ")
    exact, screen.repeatable = one("zero_grad_to_none"), repeatable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(screen.processes), "judge", lambda *_: failed)
        found = screen.screen(exact, plan_of(exact), 5)
    assert found.gate is not None
    assert (NOT_REPEATABLE in found.gate.why) is not repeatable


@pytest.mark.slow
def test_an_exact_technique_passes_bit_equal_and_can_be_promoted(screen: Screen) -> None:
    exact = one("zero_grad_to_none")
    found = screen.screen(exact, plan_of(exact), 5)
    assert found.fired
    assert found.gate is not None
    assert (found.gate.verdict, found.gate.numerics) == ("passed", "exact")
    assert "bit-equal" in found.gate.why
    assert found.comparison.kind == "screening"
    rival = screen.challenger
    assert rival is not None
    assert len(screen.base.losses) == len(rival.losses) >= 5 * FUTILE_TURNS
    assert set(found.peak_bytes) == {"A", "B"}
    challenger, base = rival.trial.pid, screen.base.trial.pid
    screen.promote()
    assert screen.plan.names == ("zero_grad_to_none",)
    assert screen.base.trial.pid == challenger
    assert screen.challenger is None
    assert base not in children()
    with pytest.raises(TrialError):
        screen.promote()


@pytest.mark.slow
def test_a_rounding_technique_is_judged_by_gradients_and_losses(screen: Screen) -> None:
    fused = one("fused_optimizer")
    found = screen.screen(fused, screen.plan.plus(fused), 5)
    assert found.fired
    assert found.gate is not None
    assert found.gate.verdict == "passed"
    assert "cosine 1.0" in found.gate.why
    assert not list(Path(screen.setting.folder).glob("gradients-*"))


@pytest.mark.slow
def test_a_technique_without_visible_effect_did_not_fire(screen: Screen) -> None:
    """`channels_last` on a model without convolutions."""
    absent = one("channels_last")
    found = screen.screen(absent, screen.plan.plus(absent), 5)
    assert not found.fired
    assert found.gate is None
    assert found.comparison.samples == []


@pytest.mark.slow
def test_a_dead_base_is_restarted_and_not_blamed_on_the_candidate(screen: Screen) -> None:
    kept = screen.plan.names  # promoted earlier, if the tests above ran in this process
    os.kill(screen.base.trial.pid, signal.SIGKILL)
    exact = one("metric_reading", every=5)
    found = screen.screen(exact, screen.plan.plus(exact), 5)
    assert found.gate is not None
    assert found.gate.verdict == "passed"
    assert screen.plan.names == kept


@pytest.mark.slow
def test_a_base_that_cannot_start_leaves_no_process(tmp_path: Path) -> None:
    before = children()
    body = """
class J(Good):
    def loss(self, model, batch):
        raise RuntimeError("never")
"""
    setting = TrialSetting(target=write_job(tmp_path, body), folder=tmp_path / "trials", hang_s=60.0)
    with pytest.raises(TrialError, match="never"):
        Screen(JobProcesses(setting=setting), Plan(), uneven=False, others=[])
    assert children() <= before


@pytest.mark.slow
def test_slices_of_a_turn_are_interleaved(screen: Screen) -> None:
    other = one("zero_grad_to_none")
    screen.screen(other, plan_of(other), 5, most_turns=FUTILE_TURNS)
    rival = screen.challenger
    assert rival is not None
    answers, account = interleave({"A": screen.base.trial, "B": rival.trial}, "BA", 40, turns=SLICES)
    for taken in answers.values():
        assert sum(len(answer["times"]) for answer in taken) == 40
        assert MIN_PARALLEL_TURNS <= len(taken) <= SLICES
    assert account.foreign_cpu_frac is None or 0.0 <= account.foreign_cpu_frac <= 1.0
    joined = join_turns("A", 0, answers["A"], account, uneven=False)
    slices = [sum(answer["times"]) / sum(answer["items"]) for answer in answers["A"]]
    assert min(slices) <= joined.seconds_per_item <= max(slices)
    assert joined.updates == 40


def test_turns_need_memory_for_two_and_no_waiting() -> None:
    busy = replace(facts(), peak_memory_bytes=1, memory_limit_bytes=10, phase_frac={"data": 0.8}, input_wait_frac=0.2)
    assert turns_that_fit(busy) > 1
    assert turns_that_fit(replace(busy, peak_memory_bytes=5)) == 1
    assert turns_that_fit(replace(busy, input_wait_frac=0.9)) == 1  # the data it waits for would arrive while it is frozen
    assert turns_that_fit(replace(busy, input_wait_frac=0.9, phase_frac={"data": 0.05})) > 1
