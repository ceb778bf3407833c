"""When the held-out data refuse a technique that changes the mathematics, the rest of the plan is proved by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

import hasten
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS
from hasten.tune import session as module
from hasten.tune.budget import Costs
from hasten.tune.proof.compare import Comparison, held_out_verdict, read_look
from hasten.tune.search.candidate import Candidate
from hasten.tune.session import FIRST_PROOF_SHARE, Session, TuneRequest
from hasten.tune.trials.pair import Design
from tests.optimizations.contract import facts
from tests.tune.jobs import write_job
from tests.tune.test_compare import sample

BUDGET_S = 100.0


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session that stands before its proof."""
    made = Session(TuneRequest(target=write_job(tmp_path), out=tmp_path / "out", budget_s=BUDGET_S))
    made.costs = Costs(start_s=1.0, base_update_s=0.01, validation_s=0.0)
    made.turns, made.max_batches = 1, None
    made.record.evidence["memory"] = {}
    return made


def play(harm: dict[str, float], seen: list[tuple[Plan, float]]) -> Any:
    """A comparison of 2x, whose candidate is worse by `harm` of each of its techniques."""

    def compare(_setting: Any, _base: Plan, plan: Plan, design: Design, **_: Any) -> Comparison:
        assert design.deadline is not None
        seen.append((plan, design.deadline - monotonic()))
        found = Comparison()
        for pair in range(LOOKS[0]):
            found.samples += [sample("A", pair, 2.0 + 0.001 * pair), sample("B", pair, 1.0)]
            found.metrics["A"].append({"loss": 1.0 + 0.001 * pair})
            found.metrics["B"].append({"loss": 1.0 + sum(harm.get(name, 0.0) for name in plan.names)})
        read_look(found, 0, 0.03)
        return found

    return compare


@pytest.mark.parametrize(("harm", "kept"), [(5.0, ["zero_grad_to_none"]), (0.0, ["length_bucketing", "zero_grad_to_none"])])
def test_what_harms_is_dropped_and_the_rest_is_proved(
    session: Session, monkeypatch: pytest.MonkeyPatch, harm: float, kept: list[str]
) -> None:
    seen: list[tuple[Plan, float]] = []
    monkeypatch.setattr(module, "compare", play({"length_bucketing": harm}, seen))
    session.record.rungs += [
        Candidate(name="length_bucketing", settings={"window_batches": 20}, outcome="applied", reason="faster"),
        Candidate(name="zero_grad_to_none", settings={}, outcome="applied", reason="faster"),
    ]
    ladder: Any = SimpleNamespace(trial_update_s=0.005, facts=facts())
    session._prove(ladder)
    assert sorted(session.record.applied_plan().names) == kept
    assert session.record.proved
    assert sorted(seen[-1][0].names) == kept
    assert seen[0][1] == pytest.approx(FIRST_PROOF_SHARE * BUDGET_S, rel=0.1)
    if harm:
        assert len(seen) == 2
        assert seen[1][1] > 0.9 * BUDGET_S - 10  # the first took no time here, so the second has all of it
        assert "held-out" in session.record.rungs[0].reason
        kept_proof = session.record.rungs[0].proof or {}
        assert len(kept_proof["samples"]) == 2 * LOOKS[0]
        assert kept_proof["quality"]["seeds"]["B"] == [1.0 + harm] * LOOKS[0]
    assert session.record.rungs[1].proof is None


@pytest.mark.parametrize(("planned", "whole"), [(500, True), (50_000, False)])
def test_held_out_quality_is_judged_by_whole_runs_where_the_time_holds_them(
    session: Session, monkeypatch: pytest.MonkeyPatch, planned: int, whole: bool
) -> None:
    designs: list[Design] = []
    answer = play({"length_bucketing": 5.0}, [])

    def compare(setting: Any, base: Plan, plan: Plan, design: Design, **given: Any) -> Comparison:
        designs.append(design)
        found: Comparison = answer(setting, base, plan, design, **given)
        found.samples = [replace(one, updates=design.updates) for one in found.samples]
        return found

    monkeypatch.setattr(module, "compare", compare)
    session.planned_updates = planned
    session.record.rungs += [
        Candidate(name="length_bucketing", settings={"window_batches": 20}, outcome="applied", reason="faster"),
        Candidate(name="zero_grad_to_none", settings={}, outcome="applied", reason="faster"),
    ]
    ladder: Any = SimpleNamespace(trial_update_s=0.005, facts=facts())
    session._prove(ladder)
    assert (designs[0].updates == planned) == whole
    assert designs[1].updates != planned  # what is left changes no mathematics: no whole runs are needed
    assert ("Whole runs would say more: --budget" in session.record.rungs[0].reason) == (not whole)


@pytest.mark.parametrize(
    ("ratio", "harm", "kept"),
    [
        (1.0, 0.0, ["validation_batch"]),
        (2.0, 0.0, ["validation_batch", "zero_grad_to_none"]),
        (0.5, 0.0, []),
        (1.0, 5.0, []),
    ],
)
def test_what_acts_around_the_updates_outlives_a_proof_that_times_updates_alone(
    session: Session, ratio: float, harm: float, kept: list[str]
) -> None:
    session.record.evidence["memory"] = {"baseline_peak_bytes": 100, "tuned_peak_bytes": 100}
    session.record.rungs += [
        Candidate(name="zero_grad_to_none", settings={}, outcome="applied", reason="faster"),
        Candidate(name="validation_batch", settings={"times": 4}, outcome="applied", reason="faster, of an epoch's time"),
    ]
    found = Comparison()
    for pair in range(LOOKS[0]):
        found.samples += [sample("A", pair, ratio * (1.0 + 0.001 * pair)), sample("B", pair, 1.0)]
        found.metrics["A"].append({"loss": 1.0 + 0.001 * pair})
        found.metrics["B"].append({"loss": 1.0 + harm})
    read_look(found, 0, 0.03)
    quality = held_out_verdict(found, hasten.Quality(metric="loss", direction="min", margin=0.1))
    session._judge(session.record.applied_plan(), found, quality)
    assert sorted(session.record.applied_plan().names) == kept
    assert session.record.proved == bool(kept)
