"""If held-out data reject a technique that changes the mathematics, the rest of the plan is proved without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

import hasten
from hasten.core.errors import TrialError
from hasten.core.machine import read_machine
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, Verdict, non_inferior
from hasten.report.evidence import Candidate, Final, Memory
from hasten.report.evidence import Comparison as Measured
from hasten.report.words import headline
from hasten.tune.budget import Budget, Costs
from hasten.tune.objective import TIME, Goal, Objective
from hasten.tune.proof import final as module
from hasten.tune.proof.compare import Comparison, held_out_verdict, read_look
from hasten.tune.proof.final import FIRST_PROOF_FRAC, FinalProof, what_would_settle
from hasten.tune.record import Record, new_evidence
from hasten.tune.trials.pair import Design
from hasten.tune.trials.trial import TrialSetting
from tests.optimizations.contract import facts
from tests.tune.test_compare import sample

BUDGET_S = 100.0
QUALITY = hasten.Quality(metric="loss", direction="min", margin=0.1)
STATE: Any = SimpleNamespace(trial_update_s=0.005, facts=facts(), config=SimpleNamespace(target_design=None))
BUCKETS = {"length_bucketing": {"window_batches": 20}, "zero_grad_to_none": {}}


def proof_in(
    folder: Path, applied: Mapping[str, Mapping[str, Any]], *, objective: Objective = TIME, **more: Any
) -> FinalProof:
    """Return a proof of applied candidates (name -> settings) that has not run yet."""
    machine, budget = read_machine(), Budget.begin(BUDGET_S)
    evidence = new_evidence(
        target="job.py:J", name="J", fingerprint="f", commands=(), machine=machine, ranks=1, budget_s=BUDGET_S,
        objective=objective,
    )  # fmt: skip
    record = Record(evidence, machine, folder / "out", budget)
    record.note(memory=Memory(baseline_peak_bytes=1, tuned_peak_bytes=None, limit_bytes=9))
    record.candidates += [
        Candidate(name=name, settings=settings, outcome="applied", reason="faster") for name, settings in applied.items()
    ]
    given = {
        "setting": TrialSetting(target="job.py:J", folder=folder),
        "design": Design(updates=1, quality=QUALITY),
        "costs": Costs(start_s=1.0, base_update_s=0.01, validation_s=0.0),
        **more,
    }
    return FinalProof(record=record, budget=budget, objective=objective, **given)


def with_peaks(comparison: Comparison, *, baseline: int, tuned: int) -> Comparison:
    """Return the comparison with the peak memory of each arm."""
    peaks = {"A": baseline, "B": tuned}
    comparison.samples = [replace(one, peak_bytes=peaks[one.arm]) for one in comparison.samples]
    return comparison


def play(harm: dict[str, float], seen: list[tuple[Plan, float]]) -> Any:
    """Return a comparison of 2x whose candidate is worse by the `harm` of each of its techniques."""

    def compare(_setting: Any, _base: Plan, plan: Plan, design: Design, **_: Any) -> Comparison:
        assert design.deadline is not None
        seen.append((plan, design.deadline - monotonic()))
        found = Comparison()
        for pair in range(LOOKS[0]):
            found.samples += [sample("A", pair, 2.0 + 0.001 * pair), sample("B", pair, 1.0)]
            found.metrics["A"].append({"loss": 1.0 + 0.001 * pair})
            found.metrics["B"].append({"loss": 1.0 + sum(harm.get(name, 0.0) for name in plan.names)})
        read_look(found, 0.03)
        return found

    return compare


@pytest.mark.parametrize(("harm", "kept"), [(5.0, ["zero_grad_to_none"]), (0.0, ["length_bucketing", "zero_grad_to_none"])])
def test_a_harmful_technique_is_dropped_and_the_rest_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: float, kept: list[str]
) -> None:
    seen: list[tuple[Plan, float]] = []
    monkeypatch.setattr(module, "compare", play({"length_bucketing": harm}, seen))
    proof = proof_in(tmp_path, BUCKETS)
    proof.prove(STATE)
    assert sorted(proof.record.applied_plan().names) == kept
    assert proof.record.proved
    assert sorted(seen[-1][0].names) == kept
    assert seen[0][1] == pytest.approx(FIRST_PROOF_FRAC * BUDGET_S, rel=0.1)
    if harm:
        assert len(seen) == 2
        assert seen[1][1] > 0.9 * BUDGET_S - 10  # the first took no time here, so the second has the whole budget
        assert "held-out" in proof.record.candidates[0].reason
        kept_proof = proof.record.candidates[0].proof
        assert isinstance(kept_proof, Final)
        assert len(kept_proof.samples or ()) == 2 * LOOKS[0]
        assert kept_proof.quality is not None
        assert (kept_proof.quality.seeds or {})["B"] == (1.0 + harm,) * LOOKS[0]
    assert proof.record.candidates[1].proof is None


@pytest.mark.parametrize(("planned", "whole"), [(500, True), (50_000, False)])
def test_held_out_quality_is_judged_by_whole_runs_if_time_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: int, whole: bool
) -> None:
    designs: list[Design] = []
    answer = play({"length_bucketing": 5.0}, [])

    def compare(setting: Any, base: Plan, plan: Plan, design: Design, **given: Any) -> Comparison:
        designs.append(design)
        found: Comparison = answer(setting, base, plan, design, **given)
        found.samples = [replace(one, updates=design.updates) for one in found.samples]
        return found

    monkeypatch.setattr(module, "compare", compare)
    proof = proof_in(tmp_path, BUCKETS, planned_updates=planned)
    proof.prove(STATE)
    assert (designs[0].updates == planned) == whole
    assert designs[1].updates != planned  # the remaining plan does not change the mathematics, so no whole runs are needed
    assert ("Whole runs would be more conclusive: --budget" in proof.record.candidates[0].reason) == (not whole)


@pytest.mark.parametrize("known", [True, False])
def test_a_proof_that_outlasts_the_script_is_repeated_with_the_updates_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    asked: list[int] = []
    answer = play({}, [])

    def compare(setting: Any, base: Plan, plan: Plan, design: Design, **given: Any) -> Comparison:
        asked.append(design.updates)
        if design.updates > 64:
            raise TrialError("the script ended after 64 updates", kind="raised")
        found: Comparison = answer(setting, base, plan, design, **given)
        return found

    monkeypatch.setattr(module, "compare", compare)
    proof = proof_in(tmp_path, {"zero_grad_to_none": {}}, updates_of_ended=lambda _: 64 if known else None)
    if known:
        proof.prove(STATE)
        assert proof.record.proved
        assert asked[0] > asked[1] == 64
    else:
        with pytest.raises(TrialError, match="after 64 updates"):
            proof.prove(STATE)
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("ratio", "harm", "kept"),
    [
        (1.0, 0.0, ["validation_batch"]),
        (2.0, 0.0, ["validation_batch", "zero_grad_to_none"]),
        (0.5, 0.0, []),
        (1.0, 5.0, []),
    ],
)
def test_event_techniques_survive_a_proof_by_update_time(tmp_path: Path, ratio: float, harm: float, kept: list[str]) -> None:
    proof = proof_in(tmp_path, {"zero_grad_to_none": {}, "validation_batch": {"times": 4}})
    found = Comparison()
    for pair in range(LOOKS[0]):
        found.samples += [sample("A", pair, ratio * (1.0 + 0.001 * pair)), sample("B", pair, 1.0)]
        found.metrics["A"].append({"loss": 1.0 + 0.001 * pair})
        found.metrics["B"].append({"loss": 1.0 + harm})
    read_look(found, 0.03)
    proof._adopt(proof.record.applied_plan(), with_peaks(found, baseline=100, tuned=100), held_out_verdict(found, QUALITY))
    assert sorted(proof.record.applied_plan().names) == kept
    assert proof.record.proved == bool(kept)


@pytest.mark.parametrize(
    ("spread", "goal", "proved"), [(0.001, "time", True), (0.9, "time", False), (0.001, "memory", False)]
)
def test_a_plan_for_events_needs_updates_that_are_not_slower_and_a_goal_of_time(
    tmp_path: Path, spread: float, goal: Any, proved: bool
) -> None:
    proof = proof_in(tmp_path, {"validation_batch": {"times": 4}}, objective=Objective(goal=Goal(goal)))
    gain = Measured(ratio=1.2, low=1.1, high=1.3, pairs=5, verdict=Verdict.FASTER)
    proof.record.candidates[0] = replace(proof.record.candidates[0], event="validation", comparison=gain)
    found = Comparison()
    for pair in range(LOOKS[0]):
        found.samples += [sample("A", pair, 1.0 + spread * (pair % 2)), sample("B", pair, 1.0 + spread * ((pair + 1) % 2))]
        found.metrics["A"].append({"loss": 1.0})
        found.metrics["B"].append({"loss": 1.0})
    read_look(found, 0.03)
    proof._adopt(proof.record.applied_plan(), with_peaks(found, baseline=100, tuned=100), held_out_verdict(found, QUALITY))
    assert proof.record.proved == proved
    proof.record.save()
    plan = (proof.record.out / "hasten.toml").read_text()
    assert ('state = "proved"' in plan) == proved
    assert ("epoch_ratio = 1.2" in plan) == proved
    assert "\nratio = " not in plan
    answer = headline(proof.record.evidence)
    assert (answer.tone == "good") == proved


# What would settle a held-out metric that a proof left open.


def said(tuned: list[float], *, whole_runs: bool = True) -> str:
    found = non_inferior([0.0] * len(tuned), tuned, direction="min", margin=0.02)
    return what_would_settle(
        found, replace(QUALITY, margin=0.02), whole_runs=whole_runs, budget_of=lambda pairs: f"--budget {pairs}h"
    )


def test_a_proof_of_short_runs_recommends_whole_runs() -> None:
    assert said([0.5, 0.6, 0.4], whole_runs=False) == f". Whole runs would be more conclusive: --budget {LOOKS[0]}h"


def test_a_hint_names_the_pairs_and_budget_of_the_next_look() -> None:
    words = said([-0.04, 0.03, 0.0, -0.02, 0.02])
    assert words.endswith(f"About {LOOKS[1]} pairs of whole runs would settle it: --budget {LOOKS[1]}h")


def test_a_metric_that_no_proof_can_settle_is_reported() -> None:
    words = said([-0.4, 0.3, 0.0, -0.2, 0.2])
    assert "would make the metric more stable" in words
    assert "--budget" not in words


@pytest.mark.parametrize(
    "tuned",
    [[0.5, 0.5, 0.6], [0.019, 0.03, 0.02, 0.025], [0.01]],
    ids=["it is worse", "its mean is beyond the margin", "one seed"],
)
def test_no_hint_is_given_if_more_pairs_would_not_help(tuned: list[float]) -> None:
    assert said(tuned) == ""
