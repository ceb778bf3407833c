"""The comparison: order, looks, retakes and verdicts with invented arms, then once with real processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hasten.core.errors import TrialError
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, Verdict
from hasten.optimizations import catalogue
from hasten.tune.budget import LEAST_PAIR_UPDATES
from hasten.tune.proof import compare as module
from hasten.tune.proof.compare import (
    MAX_RETAKES_PER_PAIR,
    PAIR_MARGIN,
    Comparison,
    PairTime,
    compare,
    held_out_verdict,
    shortened,
)
from hasten.tune.trials.machine_load import SPOILT_FRAC
from hasten.tune.trials.pair import ArmOutcome, Design, run_arm
from hasten.tune.trials.samples import Sample
from hasten.tune.trials.trial import TrialSetting
from tests.tune.jobs import children, write_job

QUALITY = Quality(margin=0.1)
A_PLAN, B_PLAN = Plan(), Plan.from_dict({"zero_grad_to_none": {}}, catalogue())


def sample(arm: str, pair: int, seconds: float, *, foreign: float = 0.0) -> Sample:
    return Sample(
        arm=arm, pair=pair, seconds_per_item=seconds, seconds=seconds * 10, items=10, updates=10, cpu_seconds=1.0,
        foreign_cpu_frac=foreign, major_faults=0, minor_faults=0, spoilt=foreign > SPOILT_FRAC, peak_bytes=1,
    )  # fmt: skip


class Arms:
    """Replaces `run_arm`: the time of each arm is invented, and the calls are recorded."""

    def __init__(self, seconds: Callable[[str, int], float]) -> None:
        self.seconds = seconds
        self.asked: list[tuple[str, int]] = []
        self.plans: dict[str, tuple[str, Plan]] = {}
        self.foreign: Callable[[str, int, int], float] = lambda *_: 0.0
        self.loss: Callable[[str, int], float] = lambda *_: 1.0

    def __call__(self, setting: TrialSetting, plan: Plan, arm: str, pair: int, design: Design) -> ArmOutcome:
        times = self.asked.count((arm, pair))
        self.asked.append((arm, pair))
        self.plans[arm] = (setting.target, plan)
        taken = sample(arm, pair, self.seconds(arm, pair), foreign=self.foreign(arm, pair, times))
        metrics = {"loss": self.loss(arm, pair)} if design.quality else {}
        return ArmOutcome(sample=taken, losses=[float(pair), 1.0], metrics=metrics, setup_s=2.0)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Comparison, Arms]]:
    def run(arms: Arms, *, seed: int = 0, **design: Any) -> tuple[Comparison, Arms]:
        monkeypatch.setattr(module, "run_arm", arms)
        setting = TrialSetting(target="a.py:J", folder=Path("unused"))
        return compare(setting, A_PLAN, B_PLAN, Design(updates=10, seed=seed, **design)), arms

    return run


def ratio(value: float, noise: float = 0.0) -> Callable[[str, int], float]:
    """Return times in which B is `value` times as fast, and pairs vary by `noise`."""
    return lambda arm, pair: (1.0 if arm == "A" else 1.0 / value) * (1 + (noise if pair % 2 == (arm == "A") else -noise))


@pytest.mark.parametrize(
    ("speed", "verdict"), [(1.5, Verdict.FASTER), (0.7, Verdict.SLOWER), (1.0, Verdict.SAME), (1.01, Verdict.SAME)]
)
def test_a_clear_verdict_stops_at_the_first_look(
    play: Callable[..., tuple[Comparison, Arms]], speed: Any, verdict: Any
) -> None:
    found, arms = play(Arms(ratio(speed, 0.001)))
    assert found.verdict is verdict
    assert len(arms.asked) == 2 * LOOKS[0]
    assert found.interval is not None
    assert found.interval.ratio == pytest.approx(speed, rel=0.01)
    assert found.interval.low <= found.interval.ratio <= found.interval.high
    assert found.interval.pairs == LOOKS[0]


def test_noise_is_undecided_after_every_look(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    found, arms = play(Arms(ratio(1.1, 0.2)))
    assert found.verdict is Verdict.UNDECIDED
    assert len(arms.asked) == 2 * LOOKS[-1]
    assert "allows more than one verdict" in found.why


def test_more_pairs_settle_an_open_first_look(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    def seconds(arm: str, pair: int) -> float:
        return 1.0 if arm == "A" else (1.0 if pair < 2 else 0.8)

    found, arms = play(Arms(seconds))
    assert len(arms.asked) > 2 * LOOKS[0]
    assert found.verdict is Verdict.FASTER


def test_the_verdict_is_not_read_between_looks(
    play: Callable[..., tuple[Comparison, Arms]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = module.read_look

    def spy(comparison: Comparison, *rest: Any) -> None:
        read.append(len(comparison.times("A")))
        real(comparison, *rest)

    monkeypatch.setattr(module, "read_look", spy)
    play(Arms(ratio(1.1, 0.2)))
    assert tuple(read) == LOOKS


def test_pairs_alternate_and_the_seed_draws_the_first_arm(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    begins = set()
    for seed in range(12):
        _, arms = play(Arms(ratio(1.5, 0.001)), seed=seed)
        first = [arm for arm, _ in arms.asked[::2]]
        assert all(one != two for one, two in itertools.pairwise(first))
        assert [pair for _, pair in arms.asked] == [pair for pair in range(LOOKS[0]) for _ in "AB"]
        begins.add(first[0])
        assert play(Arms(ratio(1.5, 0.001)), seed=seed)[1].asked == arms.asked
    assert begins == {"A", "B"}


def test_a_disturbed_pair_is_repeated_as_a_whole_and_never_averaged_in(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    arms = Arms(ratio(1.5, 0.001))
    arms.foreign = lambda arm, pair, times: 0.5 if (arm, pair, times) == ("B", 2, 0) else 0.0
    found, _ = play(arms)
    assert found.retaken == 1
    assert arms.asked.count(("A", 2)) == arms.asked.count(("B", 2)) == 2
    assert not any(taken.spoilt for taken in found.samples)
    assert len(found.times("A")) == len(found.times("B")) == LOOKS[0]


def test_a_pair_that_stays_disturbed_is_kept_and_not_counted(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    arms = Arms(lambda arm, pair: 100.0 if pair == 1 else (1.5 if arm == "A" else 1.0))
    arms.foreign = lambda arm, pair, _: 0.5 if (arm, pair) == ("B", 1) else 0.0
    found, _ = play(arms, looks=(5,))
    assert arms.asked.count(("B", 1)) == MAX_RETAKES_PER_PAIR + 1
    assert found.retaken == MAX_RETAKES_PER_PAIR
    assert [(taken.arm, taken.pair) for taken in found.samples if taken.spoilt] == [("B", 1)]
    assert found.times("A") == [1.5] * 4
    assert found.interval is not None
    assert found.interval.pairs == 4


def test_a_small_constant_disturbance_is_not_averaged_in(
    play: Callable[..., tuple[Comparison, Arms]],
) -> None:
    arms = Arms(ratio(1.5, 0.001))
    arms.foreign = lambda *_: 2 * SPOILT_FRAC
    found, _ = play(arms, looks=(5,))
    assert found.interval is None
    assert found.verdict is Verdict.UNDECIDED


def test_too_few_clean_pairs_are_reported(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    arms = Arms(ratio(1.5))
    arms.foreign = lambda arm, *_: 0.5 if arm == "A" else 0.0
    found, _ = play(arms, looks=(5,))
    assert found.interval is None
    assert found.verdict is Verdict.UNDECIDED
    assert "other processes" in found.why
    assert len(found.samples) == 10
    assert found.to_dict()["ratio"] is None


def test_a_passed_deadline_ends_after_the_pair_and_is_the_stated_cause(
    play: Callable[..., tuple[Comparison, Arms]],
) -> None:
    found, arms = play(Arms(ratio(1.5, 0.001)), deadline=monotonic() - 1.0)
    assert len(arms.asked) == 2
    assert found.verdict is Verdict.UNDECIDED
    assert "other processes" not in found.why
    assert "time" in found.why


def test_a_disturbed_pair_is_not_repeated_after_the_deadline(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    arms = Arms(ratio(1.5))
    arms.foreign = lambda arm, *_: 0.5 if arm == "A" else 0.0
    play(arms, deadline=monotonic() - 1.0)
    assert len(arms.asked) == 2


def test_undecided_quality_continues_to_the_next_look(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    arms = Arms(ratio(1.5, 0.001))
    arms.loss = lambda arm, pair: 1.0 if arm == "A" else 1.0 + (0.3 if pair % 2 else -0.3)
    found, _ = play(arms, quality=QUALITY)
    assert found.verdict is Verdict.FASTER
    assert len(arms.asked) == 2 * LOOKS[-1]
    assert held_out_verdict(found, QUALITY).verdict == "undecided"


@pytest.mark.parametrize(("harm", "verdict"), [(0.0, "not_worse"), (0.5, "worse")])
def test_clear_quality_stops_with_the_speed(play: Callable[..., tuple[Comparison, Arms]], harm: Any, verdict: Any) -> None:
    arms = Arms(ratio(1.5, 0.001))
    arms.loss = lambda arm, pair: 1.0 + 0.01 * pair + (harm if arm == "B" else 0.0)
    found, _ = play(arms, quality=QUALITY)
    assert len(arms.asked) == 2 * LOOKS[0]
    assert held_out_verdict(found, QUALITY).verdict == verdict


def test_models_that_detect_nothing_prove_nothing() -> None:
    found, accuracy = Comparison(), Quality(metric="accuracy", direction="max", margin=0.1)
    for arm in "AB":
        found.metrics[arm] = [{"accuracy": 0.0}] * 3
    verdict = held_out_verdict(found, accuracy)
    assert verdict.verdict == "undecided"
    assert "0 in every run" in verdict.why
    found.metrics["A"] = found.metrics["B"] = [{"accuracy": 1.0}] * 3
    assert held_out_verdict(found, accuracy).verdict == "not_worse"
    found.metrics["B"] = [{"accuracy": 0.0}] * 3
    assert held_out_verdict(found, accuracy).verdict == "worse"


def test_a_missing_metric_is_named() -> None:
    found = Comparison(metrics={"A": [{"loss": 1.0}], "B": [{"loss": 1.0}]})
    with pytest.raises(TrialError, match="accuracy") as caught:
        held_out_verdict(found, Quality(metric="accuracy", direction="max", margin=0.1))
    assert "loss" in str(caught.value)


def test_arm_b_may_be_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = Arms(ratio(1.5, 0.001))
    monkeypatch.setattr(module, "run_arm", arms)
    mine, other = (TrialSetting(target=name, folder=Path("unused")) for name in ("a.py:J", "b.py:J"))
    compare(mine, A_PLAN, B_PLAN, Design(updates=10, looks=(3,)), candidate_setting=other)
    assert arms.plans == {"A": ("a.py:J", A_PLAN), "B": ("b.py:J", B_PLAN)}
    assert len(arms.asked) == 6


def test_a_smallest_difference_is_never_below_the_one_set(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    found, _ = play(Arms(ratio(1.05, 0.001)), min_floor_frac=0.10)
    assert found.floor.frac == pytest.approx(0.10)
    assert found.verdict is Verdict.SAME


def test_a_comparison_is_written_to_the_evidence_file(play: Callable[..., tuple[Comparison, Arms]]) -> None:
    found, _ = play(Arms(ratio(1.5, 0.001)))
    table = found.to_dict()
    assert (table["verdict"], table["pairs"], table["kind"], len(table["samples"])) == ("faster", 5, "confirmation", 10)
    assert table["low"] <= table["ratio"] <= table["high"]
    assert found.losses["A"] == [0.0, 1.0]  # from the first pair
    assert found.setup_s == {"A": 2.0, "B": 2.0}


@pytest.mark.long
@pytest.mark.slow
def test_real_processes_are_compared_in_turns(tmp_path: Path) -> None:
    setting = TrialSetting(target=write_job(tmp_path), folder=tmp_path / "trials", hang_s=60.0)
    slower = TrialSetting(target=write_job(tmp_path, SLOW, "slow_job.py"), folder=tmp_path / "other_trials", hang_s=60.0)
    seen: list[int] = []
    before = children()
    found = compare(
        setting, Plan(), Plan(), Design(updates=6, looks=(3,), quality=Quality(margin=10.0)),
        candidate_setting=slower, on_pair=lambda so_far: seen.append(len(so_far.samples)),
    )  # fmt: skip
    assert seen == [2, 4, 6]
    assert children() <= before
    assert len(found.losses["A"]) == 6
    assert found.losses["A"] == found.losses["B"]  # the same seed, model and data: sleeping does not change the numbers
    assert [len(found.metrics[arm]) for arm in "AB"] == [3, 3]
    assert found.metrics["A"] == found.metrics["B"]
    assert len({metrics["loss"] for metrics in found.metrics["A"]}) == 3  # each pair has its own seed
    assert all(taken.peak_bytes and taken.items == 48 for taken in found.samples)


@pytest.mark.slow
def test_a_failing_arm_names_its_plan(tmp_path: Path) -> None:
    setting = TrialSetting(target=write_job(tmp_path, DEADLY), folder=tmp_path / "trials", hang_s=60.0)
    plan = Plan.from_dict({"metric_reading": {"every": 7}}, catalogue())
    with pytest.raises(TrialError, match=r"Under the plan \[metric_reading\]") as caught:
        run_arm(setting, plan, "B", 0, Design(updates=4))
    assert caught.value.kind == "killed"


SLOW = """
class J(Good):
    def loss(self, model, batch):
        time.sleep(0.02)
        return super().loss(model, batch)
"""
DEADLY = """
class J(Good):
    def loss(self, model, batch):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_pairs_become_shorter_if_too_few_would_fit() -> None:
    design = Design(updates=100, deadline=monotonic() + 44.0)
    taken = PairTime(seconds=20.0, counted_s=16.0, updates=100)  # 4 s to start, 0.16 s per update

    shorter = shortened(design, taken, pairs=4)

    assert shorter.updates == pytest.approx((44.0 / 4 / PAIR_MARGIN - 4.0) / 0.16, abs=1)
    assert taken.seconds_of(shorter.updates) * 4 <= 44.0
    assert shortened(replace(design, deadline=monotonic() + 1000.0), taken, pairs=4).updates == 100
    assert shortened(replace(design, deadline=None), taken, pairs=4).updates == 100
    assert shortened(design, taken, pairs=0).updates == 100
    assert shortened(replace(design, deadline=monotonic() + 1.0), taken, pairs=4).updates == LEAST_PAIR_UPDATES


def test_a_pair_whose_time_goes_into_starting_is_not_shortened() -> None:
    design = Design(updates=32, deadline=monotonic() + 60.0)
    taken = PairTime(seconds=25.0, counted_s=0.5, updates=32)  # as of a script that prepares its data for ten seconds
    assert shortened(design, taken, pairs=4).updates == 32
    assert shortened(replace(design, updates=1000), taken, pairs=4).updates == int(0.1 * 24.5 / (0.5 / 32))


def test_a_pair_that_took_longer_than_expected_still_leaves_room_for_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def slow(_setting: TrialSetting, _plan: Plan, arm: str, pair: int, design: Design) -> ArmOutcome:
        asked.append(design.updates)
        started = monotonic()
        sleep(0.01 * design.updates)
        taken = replace(sample(arm, pair, 1.0 if arm == "A" else 0.5), seconds=monotonic() - started)
        return ArmOutcome(sample=taken, losses=[1.0], metrics={}, setup_s=0.0)

    monkeypatch.setattr(module, "run_arm", slow)
    setting = TrialSetting(target="a.py:J", folder=Path("unused"))

    found = compare(setting, A_PLAN, B_PLAN, Design(updates=50, deadline=monotonic() + 3.5))  # three pairs of 1 s would fit

    assert asked[:2] == [50, 50]
    assert max(asked[2:]) < 50
    assert len(found.times("A")) >= LOOKS[0]
    assert found.verdict is Verdict.FASTER
