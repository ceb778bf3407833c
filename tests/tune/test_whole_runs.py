"""Whole runs in pairs: order, looks, early ends and retakes with simulated runs; then real processes to a real target."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from hasten.core.errors import TrialError
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, Verdict
from hasten.optimizations import catalogue
from hasten.tune.proof import whole_runs as module
from hasten.tune.proof.compare import compare
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison, WholeRun
from hasten.tune.proof.whole_runs import TargetDesign, compare_to_target, planned_looks, run_pair
from hasten.tune.trials.pair import Design, run_arm
from hasten.tune.trials.trial import TrialSetting
from tests.tune.jobs import HEAD, children
from tests.tune.test_time_to_target import curve, falling

QUALITY = Quality(margin=0.05)


class Played:
    """Replaces `run_pair`: B reaches its target `speed(pair)` times as fast."""

    def __init__(self, speed: Callable[[int], float]) -> None:
        self.speed = speed
        self.spoilt: Callable[[int, int], bool] = lambda *_: False
        self.asked: list[tuple[str, int]] = []

    def __call__(self, _setting: Any, _plans: Any, arms: Sequence[Any], pair: int, _design: Any) -> dict[str, WholeRun]:
        times = sum(asked == pair for _, asked in self.asked)
        self.asked.append(("".join(arms), pair))
        bad, clock = self.spoilt(pair, times), 1.0 + 0.01 * (pair % 2)
        return {
            arm: WholeRun(arm=arm, pair=pair, curve=curve(falling(speed, end=0.25), second), items=1, spoilt=bad)  # type: ignore[arg-type]
            for arm, speed, second in (("A", 1.0, 1.0), ("B", self.speed(pair), clock))
        }


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[TargetComparison, Played]]:
    def run(played: Played, **design: Any) -> tuple[TargetComparison, Played]:
        monkeypatch.setattr(module, "run_pair", played)
        setting = TrialSetting(target="a.py:J", folder=Path("unused"))
        return compare_to_target(setting, Plan(), Plan(), TargetDesign(quality=QUALITY, **design)), played

    return run


Play = Callable[..., tuple[TargetComparison, Played]]


def test_a_clear_verdict_stops_at_the_first_look_and_pairs_alternate(play: Play) -> None:
    first = set()
    for seed in range(8):
        found, played = play(Played(lambda _: 2.0), seed=seed)
        assert found.verdict is Verdict.FASTER
        assert [pair for _, pair in played.asked] == list(range(LOOKS[0]))
        order = [arms for arms, _ in played.asked]
        assert all(one != two for one, two in itertools.pairwise(order))
        first.add(order[0])
    assert first == {"AB", "BA"}


def test_an_open_comparison_continues_to_the_last_look(play: Play) -> None:
    found, played = play(Played(lambda pair: 1.4 if pair % 2 else 0.95))
    assert len(played.asked) == LOOKS[-1]
    assert found.verdict is Verdict.UNDECIDED


def test_a_hopeless_comparison_ends_early(play: Play) -> None:
    found, played = play(Played(lambda _: 0.5))
    assert len(played.asked) == MIN_PAIRS
    assert found.missed == MIN_PAIRS
    assert found.verdict is not Verdict.FASTER
    assert found.interval is not None


def test_a_disturbed_pair_is_repeated_once(play: Play) -> None:
    played = Played(lambda _: 2.0)
    played.spoilt = lambda pair, times: pair == 1 and times == 0
    found, _ = play(played)
    assert found.retaken == 1
    assert sum(pair == 1 for _, pair in played.asked) == 2
    assert not any(run.spoilt for run in found.runs)
    played = Played(lambda _: 2.0)
    played.spoilt = lambda pair, _: pair == 1
    found, _ = play(played)
    assert sum(pair == 1 for _, pair in played.asked) == 2
    assert found.interval is not None
    assert found.interval.pairs == LOOKS[0] - 1


def test_a_passed_deadline_ends_after_the_pair(play: Play) -> None:
    found, played = play(Played(lambda _: 2.0), deadline=monotonic() - 1.0)
    assert len(played.asked) == 1
    assert found.verdict is Verdict.UNDECIDED
    assert "the time ran out" in found.why


@pytest.mark.parametrize(("pairs", "looks"), [(3, (3,)), (4, (4,)), (5, (5,)), (6, (5,)), (9, (5, 7)), (10, (5, 7, 10))])
def test_the_looks_depend_on_the_budget_alone(pairs: int, looks: tuple[int, ...]) -> None:
    assert planned_looks(pairs) == looks


RATE = """
class J(Good):
    batch_size = 16
    num_updates = 64
    rate = %s

    def train_data(self):
        return Table(256, 0)

    def valid_data(self):
        return Table(64, 1)

    def model(self):
        return nn.Linear(8, 1)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.rate)


class Table(TensorDataset):
    def __init__(self, num, seed):
        x = torch.randn(num, 8, generator=torch.Generator().manual_seed(seed))
        super().__init__(x, x.sum(dim=1, keepdim=True))
"""
"""A job that fits a line: a constant rate of 0.005 is far too low for 64 updates, and one of 0.1 is right."""


def fitted(tmp_path: Path, rate: float) -> TrialSetting:
    path = tmp_path / "fitted.py"
    path.write_text(HEAD + RATE % rate, encoding="utf-8")
    return TrialSetting(target=f"{path}:J", folder=tmp_path / "trials", hang_s=60.0)


def one(name: str, **settings: Any) -> Plan:
    return Plan.from_dict({name: settings}, catalogue())


def updates_to(run: WholeRun, target: float) -> int:
    """Return the updates at the first measurement at or below the target."""
    return next(at for at, metric in zip(run.curve.updates, run.curve.metric, strict=True) if metric <= target)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.slow
def test_a_cycle_reaches_the_target_of_a_rate_that_is_too_low_in_fewer_updates(tmp_path: Path) -> None:
    before = children()
    design = TargetDesign(quality=QUALITY, looks=(3,), side_by_side=True)
    found = compare_to_target(fitted(tmp_path, 0.005), Plan(), one("one_cycle", max_lr_factor=20.0), design)
    assert children() <= before
    assert (found.pairs, found.missed) == (3, 0)
    assert found.held_out is not None
    assert found.held_out.verdict == "not_worse"
    assert len({run.curve.metric for run in found.runs}) == 6  # each pair has its own seed
    for pair, target in enumerate(found.targets):
        base, cycle = (next(run for run in found.runs if (run.arm, run.pair) == (arm, pair)) for arm in "AB")
        assert base.curve.updates == cycle.curve.updates == tuple(range(0, 65, 4))
        assert base.items == cycle.items == 64 * 16
        assert base.curve.metric[0] == cycle.curve.metric[0]  # the same weights, before the first update
        assert list(base.curve.seconds) == sorted(base.curve.seconds)
        assert updates_to(cycle, target) < 0.6 * updates_to(base, target)  # counted in updates, independent of the clock


@pytest.mark.alone
@pytest.mark.long
def test_a_cycle_does_not_help_a_rate_that_fits(tmp_path: Path) -> None:
    design = TargetDesign(quality=QUALITY)
    runs = run_pair(fitted(tmp_path, 0.1), {"A": Plan(), "B": one("one_cycle", max_lr_factor=0.1)}, ("B", "A"), 0, design)
    found = TargetComparison(quality=QUALITY, floor=design.floor)
    found.add(runs["A"], runs["B"])
    assert found.missed == 1
    assert runs["A"].curve.metric[-1] < 0.01 < runs["B"].curve.metric[-1]


@pytest.mark.alone
@pytest.mark.long
def test_larger_batches_see_the_same_samples(tmp_path: Path) -> None:
    setting, plan = fitted(tmp_path, 0.05), one("optimizer_batch", factor=2.0, scaling="linear")
    design = TargetDesign(quality=QUALITY, points=8)
    runs = run_pair(setting, {"A": Plan(), "B": plan}, ("A", "B"), 0, design)
    assert runs["A"].items == runs["B"].items == 64 * 16
    assert (runs["A"].curve.updates[-1], runs["B"].curve.updates[-1]) == (64, 32)
    taken = run_arm(setting, plan, "B", 0, Design(updates=32)).sample
    assert (taken.items, taken.updates) == (32 * 16, 16)


@pytest.mark.slow
def test_a_run_of_unknown_length_and_a_failing_arm_name_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    body = """
class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Rows(64)[index] for index in range(64))

class J(Good):
    def train_data(self):
        return Endless()
"""
    path.write_text(HEAD + body, encoding="utf-8")
    setting = TrialSetting(target=f"{path}:J", folder=tmp_path / "trials", hang_s=60.0)
    before = children()
    with pytest.raises(TrialError, match=r"Under the plan \[empty\]: The length of the run is unknown"):
        run_pair(setting, {"A": Plan(), "B": Plan()}, ("A", "B"), 0, TargetDesign(quality=QUALITY))
    assert children() <= before


@pytest.mark.alone
@pytest.mark.long
def test_a_comparison_of_updates_gives_both_arms_the_same_samples(tmp_path: Path) -> None:
    design = Design(updates=33, looks=(3,), turns=10, quality=QUALITY)
    found = compare(fitted(tmp_path, 0.05), Plan(), one("optimizer_batch", factor=4.0, scaling="linear"), design)
    for taken in found.samples:
        assert (taken.items, taken.updates) == ((33 * 16, 33) if taken.arm == "A" else (32 * 16, 8))
