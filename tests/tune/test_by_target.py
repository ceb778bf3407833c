"""The search with candidates judged by time to target: their order, budget, outcomes and proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from hasten.core.card import Judge, Numerics
from hasten.core.errors import TrialError
from hasten.core.job import Quality
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.report import load
from hasten.report.evidence import NumericsResult
from hasten.report.words import headline
from hasten.tune.budget import Budget
from hasten.tune.objective import Goal, Objective
from hasten.tune.proof import final as proof_module
from hasten.tune.proof.final import FinalProof
from hasten.tune.proof.numerics import GateVerdict
from hasten.tune.proof.time_to_target import TargetComparison
from hasten.tune.proof.whole_runs import TargetDesign
from hasten.tune.record import Record
from hasten.tune.search import by_target as module
from hasten.tune.search.candidate import NOT_TRIED
from hasten.tune.search.screening import Screening
from hasten.tune.search.search import Search
from hasten.tune.trials.pair import Design
from tests.tune.test_final_proof import play as play_updates
from tests.tune.test_final_proof import proof_in
from tests.tune.test_search import PASSED, FakeScreen, configure, make, measured, outcomes, reason, technique
from tests.tune.test_time_to_target import compared, curve, falling, jittered

QUALITY = Quality(margin=0.05)
PENDING = GateVerdict(numerics=Numerics.TRAINING, verdict="pending", why="held-out quality decides")
RUN_S = (1.0 + 104 * 0.01) * 1.15
"""Seconds of a whole run here: the start, 100 updates of 10 ms and 4 to warm up, and the margin of an estimate."""

Asked = list[tuple[tuple[str, ...], tuple[str, ...], TargetDesign]]


def schedule(name: str = "cycle", **card: Any) -> type[Optimization]:
    """Invent a technique that is judged by time to target."""
    judged: dict[str, Any] = {"numerics": Numerics.TRAINING, "judged_by": Judge.TIME_TO_TARGET, **card}
    return technique(name, gain=0.0, **judged)


def screened(gate: GateVerdict = PENDING, ratio: float = 1.0) -> Screening:
    """Return a screening in which an update is no faster."""
    checks = [{"name": "rate", "passed": True, "seen": "1"}]
    return Screening(comparison=measured(ratio), gate=gate, evidence=checks, setup_s=3.0, peak_bytes={"A": 1, "B": 1})


def to_target(kinds: list[type[Optimization]], screen: FakeScreen, *, seconds: float = 1e6, design: bool = True) -> Search:
    """Return a search on facts with an update of 10 ms. Its screen answers with a pending gate by default."""
    for kind in kinds:
        if kind.card.judged_by is Judge.TIME_TO_TARGET:
            screen.answers.setdefault(kind.card.name, screened())
    target_design = TargetDesign(quality=QUALITY) if design else None
    return make(kinds, screen, seconds=seconds, target_design=target_design)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Asked]:
    """Answer comparisons by time to target with a comparison or an error, for any plans."""

    def answering(answer: Any) -> Asked:
        asked: Asked = []

        def compare(_setting: Any, base: Plan, plan: Plan, design: TargetDesign, **_: Any) -> TargetComparison:
            asked.append((base.names, plan.names, design))
            if isinstance(answer, Exception):
                raise answer
            found: TargetComparison = answer
            return found

        monkeypatch.setattr(module, "compare_to_target", compare)
        monkeypatch.setattr(proof_module, "compare_to_target", compare)
        return asked

    return answering


def test_it_comes_last_on_top_of_the_kept_plan(play: Callable[[Any], Asked]) -> None:
    asked = play(compared(jittered(2.0)))
    screen = FakeScreen(answers={"good": 1.5})
    search = to_target([schedule(prior=1.0), technique("good", gain=0.3), technique("idle", gain=0.2)], screen)
    search.run()
    assert screen.tried == ["good", "idle", "cycle"]
    assert [(base, plan) for base, plan, _ in asked] == [(("good",), ("good", "cycle"))]
    assert outcomes(search) == {"good": "applied", "idle": "refused", "cycle": "applied"}
    assert screen.plan.names == ("good", "cycle")
    candidate = search.state.candidates[-1]
    assert candidate.predicted_max_gain is None
    assert candidate.comparison is not None
    assert candidate.comparison.kind == "time_to_target"
    assert candidate.update_time is not None
    assert candidate.update_time.kind == "screening"
    assert candidate.numerics is not None
    assert (candidate.numerics.kind, candidate.numerics.verdict) == ("training", "pending")


def test_being_no_faster_per_update_refuses_nothing(play: Callable[[Any], Asked]) -> None:
    play(compared(jittered(2.0)))
    screen = FakeScreen(answers={"cycle": screened(ratio=0.8)})
    search = to_target([schedule()], screen)
    search.run()
    search.prune()
    assert outcomes(search) == {"cycle": "applied"}
    assert screen.tried == ["cycle"]


def test_pruning_skips_what_update_time_cannot_judge(play: Callable[[Any], Asked]) -> None:
    play(compared(jittered(2.0)))
    screen = FakeScreen(answers={"a": 1.3, "b": 1.5}, without={"a": 1.0, "cycle": 1.0})
    search = to_target([technique("a", gain=0.8), technique("b", gain=0.7), schedule()], screen)
    search.run()
    search.prune()
    assert outcomes(search) == {"a": "pruned", "b": "applied", "cycle": "applied"}


@pytest.mark.parametrize(
    ("found", "outcome", "words", "numerics"),
    [
        (compared(jittered(1.0)), "refused", "does not reach the target sooner", "pending"),
        (compared([(curve(falling(end=0.25)), curve(falling(0.5)))] * 3), "refused", "ends worse", "failed"),
        (compared(jittered(2.0), Quality(margin=1e-9)), "applied", "reaches the target sooner", "pending"),
        (compared(jittered(2.0, pairs=2)), "undecided", "only 2 clean pairs", "pending"),
    ],
)
def test_every_outcome_has_its_reason(
    play: Callable[[Any], Asked], found: Any, outcome: str, words: str, numerics: str
) -> None:
    play(found)
    search = to_target([schedule()], FakeScreen())
    search.run()
    assert outcomes(search) == {"cycle": outcome}
    assert words in reason(search, "cycle")
    candidate = search.state.candidates[0]
    assert candidate.numerics is not None
    assert candidate.numerics.verdict == numerics
    assert (candidate.comparison is None) == (found.interval is None)
    assert bool(candidate.unused_samples) == (found.interval is None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Screening(comparison=measured(1.0), gate=PASSED, evidence=[]), "no visible effect"),
        (screened(GateVerdict(numerics=Numerics.TRAINING, verdict="failed", why="the loss rose")), "the loss rose"),
    ],
)
def test_without_effect_or_valid_numerics_no_whole_run_is_spent(
    play: Callable[[Any], Asked], answer: Any, words: str
) -> None:
    asked = play(compared(jittered(2.0)))
    search = to_target([schedule()], FakeScreen(answers={"cycle": answer}))
    search.run()
    assert asked == []
    assert outcomes(search) == {"cycle": "refused"}
    assert words in reason(search, "cycle")


@pytest.mark.parametrize(("kind", "outcome"), [("nan", "refused"), ("out_of_memory", "failed")])
def test_a_whole_run_that_fails_is_recorded(play: Callable[[Any], Asked], kind: Any, outcome: str) -> None:
    play(TrialError("It broke.", kind=kind))
    search = to_target([schedule(), technique("good")], FakeScreen(answers={"good": 1.5}))
    search.run()
    assert outcomes(search) == {"cycle": outcome, "good": "applied"}


def test_a_budget_that_is_too_small_names_a_sufficient_one(play: Callable[[Any], Asked]) -> None:
    asked = play(compared(jittered(2.0)))
    search = to_target([schedule(), technique("good")], FakeScreen(answers={"good": 1.5}), seconds=25.0)
    search.run()
    assert asked == []
    assert outcomes(search) == {"cycle": "undecided", "good": "applied"}
    words = reason(search, "cycle")
    assert words.startswith(f"{NOT_TRIED}: a whole run takes {RUN_S:.0f} s")
    assert "3 pairs and 3 more for the final proof do not fit into the budget; use --budget 1m" in words


@pytest.mark.parametrize(("seconds", "looks"), [(1e6, (5, 7, 10)), (50.0, (5,)), (40.0, (3,)), (36.0, None)])
def test_the_budget_sets_the_looks_before_the_first_pair(play: Callable[[Any], Asked], seconds: float, looks: Any) -> None:
    """A pair takes 4.7 s. There must also be room for 3 pairs in the proof, and for a screening of 9.7 s."""
    asked = play(compared(jittered(1.0)))
    to_target([schedule()], FakeScreen(), seconds=seconds).run()
    assert [design.looks for _, _, design in asked] == ([looks] if looks else [])
    for _, _, design in asked:
        assert design.deadline is not None
        assert design.deadline < monotonic() + seconds - 3 * 2 * RUN_S
        assert design.floor.frac == 0.03


def test_the_first_of_several_leaves_room_for_the_others(play: Callable[[Any], Asked]) -> None:
    asked = play(compared(jittered(1.0)))
    to_target([schedule("one", prior=0.9), schedule("two", prior=0.1)], FakeScreen(), seconds=80.0).run()
    assert [plan for _, plan, _ in asked] == [("one",), ("two",)]
    assert [len(design.looks) for _, _, design in asked] == [1, 3]  # simulated runs take no time


def test_schedules_exclude_each_other_and_without_a_metric_none_is_tried(play: Callable[[Any], Asked]) -> None:
    play(compared(jittered(2.0)))
    both = [schedule("one", prior=0.9, claims=frozenset({"schedule"})), schedule("two", claims=frozenset({"schedule"}))]
    search = to_target(both, FakeScreen())
    search.run()
    assert outcomes(search) == {"one": "applied", "two": "refused"}
    assert "both claim schedule" in reason(search, "two")
    search = to_target(both, FakeScreen(), design=False)
    search.run()
    assert outcomes(search) == {"one": "refused", "two": "refused"}
    assert "no held-out metric" in reason(search, "one")


def test_it_is_not_tried_if_memory_is_the_goal(play: Callable[[Any], Asked]) -> None:
    asked = play(compared(jittered(2.0)))
    search = to_target([schedule()], FakeScreen())
    configure(search, objective=Objective(goal=Goal.MEMORY))
    search.run()
    assert asked == []
    assert "does not lower peak memory" in reason(search, "cycle")


# The final proof.


@pytest.fixture
def proof(tmp_path: Path) -> FinalProof:
    """Return a proof that has not run yet, with a schedule and a faster update applied."""
    applied = {"one_cycle": {"max_lr_factor": 3.0}, "zero_grad_to_none": {}}
    made = proof_in(tmp_path, applied, planned_updates=100, design=Design(updates=1, quality=QUALITY))
    cycle, zero = made.record.candidates
    pending = NumericsResult(kind=Numerics.TRAINING, verdict="pending", why="held-out quality decides")
    made.record.candidates[:] = [
        replace(cycle, numerics=pending, comparison=compared(jittered(2.0)).to_evidence()),
        replace(zero, comparison=measured(2.0).to_evidence()),
    ]
    return made


def prove(
    proof: FinalProof, monkeypatch: pytest.MonkeyPatch, budget_s: float = 300.0
) -> tuple[Record, list[tuple[Plan, float]]]:
    """Run the proof with invented comparisons. Returns the record, and the plans that were compared by update time."""
    seen: list[tuple[Plan, float]] = []
    monkeypatch.setattr(proof_module, "compare", play_updates({}, seen))
    state: Any = SimpleNamespace(
        trial_update_s=0.01, config=SimpleNamespace(target_design=TargetDesign(quality=QUALITY)),
        whole_pair_s=lambda _: 2 * RUN_S,
    )  # fmt: skip
    replace(proof, budget=Budget(budget_s, monotonic())).prove(state)
    proof.record.finish("done")
    return proof.record, seen


def test_the_final_proof_contains_both_ratios(
    proof: FinalProof, monkeypatch: pytest.MonkeyPatch, play: Callable[[Any], Asked]
) -> None:
    asked = play(compared(jittered(1.5)))
    record, seen = prove(proof, monkeypatch)
    assert [(base, sorted(plan)) for base, plan, _ in asked] == [((), ["one_cycle", "zero_grad_to_none"])]
    assert [sorted(plan.names) for plan, _ in seen] == [["one_cycle", "zero_grad_to_none"]]
    evidence = load(record.out / "evidence.json")
    final = evidence.final
    assert final is not None
    assert final.ratio == pytest.approx(2.0, rel=0.01)
    assert final.time_to_target is not None
    assert final.time_to_target.ratio == pytest.approx(1.5, rel=0.01)
    assert (final.time_to_target.verdict, final.time_to_target.pairs) == ("faster", 5)
    assert final.quality is not None
    assert final.quality.verdict == "not_worse"
    assert (final.quality.seeds or {})["A"] == (0.25,) * 5  # from the whole runs
    assert record.proved
    assert record.applied_plan().names
    numerics = evidence.rungs[0].numerics
    assert numerics is not None
    assert numerics.verdict == "passed"
    told = headline(evidence)
    assert told.line.startswith("1.49x sooner at the target, proved over whole runs (")
    assert "held-out loss not worse; per update 2.0x" in told.line
    assert told.tone == "good"
    assert "time_to_target = 1.49" in (evidence.plan_toml or "")
    page = (record.out / "report.html").read_text(encoding="utf-8")
    assert "sooner under the plan (" in page
    assert "whole runs, time to target" in page


@pytest.mark.parametrize(
    ("found", "outcome"), [(compared(jittered(1.0)), "refused"), (compared(jittered(2.0, pairs=2)), "undecided")]
)
def test_unproved_schedules_are_removed_and_the_rest_is_proved(
    proof: FinalProof, monkeypatch: pytest.MonkeyPatch, play: Callable[[Any], Asked], found: Any, outcome: str
) -> None:
    play(found)
    record, seen = prove(proof, monkeypatch)
    assert [plan.names for plan, _ in seen] == [("zero_grad_to_none",)]
    final = load(record.out / "evidence.json").final
    cycle, zero = record.candidates
    assert (cycle.outcome, zero.outcome) == (outcome, "applied")
    assert "removed again because the final proof by time to target says" in cycle.reason
    assert (cycle.proof is None) == (found.interval is None)
    assert final is not None
    assert final.time_to_target is None
    assert record.proved


def test_without_room_for_the_proof_it_is_not_applied(
    proof: FinalProof, monkeypatch: pytest.MonkeyPatch, play: Callable[[Any], Asked]
) -> None:
    asked = play(compared(jittered(2.0)))
    record, _ = prove(proof, monkeypatch, budget_s=20.0)
    assert asked == []
    assert record.candidates[0].outcome == "undecided"
    assert "no room left for the final proof" in record.candidates[0].reason


def test_an_unproved_schedule_alone_leaves_an_empty_plan(
    proof: FinalProof, monkeypatch: pytest.MonkeyPatch, play: Callable[[Any], Asked]
) -> None:
    play(compared(jittered(1.0)))
    proof.record.candidates.pop()
    record, seen = prove(proof, monkeypatch)
    assert seen == []
    assert record.applied_plan().names == ()
    assert not record.proved
    assert record.evidence.final is None
