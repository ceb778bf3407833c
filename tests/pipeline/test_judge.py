"""Gates fail closed, and an override is on the record, for what it was given for alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import CorruptError
from hasten.pipeline.description import PipelineError, StageGate
from hasten.pipeline.judge import AUDIT, decide, judge, override, read_metrics
from tests.pipeline.described import described

GATE = StageGate(metric="good", threshold=0.8)
EXACT = StageGate(metric="loss", threshold=2.0, at_most=True, exact=True)


@pytest.mark.parametrize(
    ("gate", "metrics", "passed"),
    [
        (GATE, {"good": {"hits": 950, "items": 1000}}, True),
        (GATE, {"good": {"hits": 810, "items": 1000}}, False),  # the lower bound counts
        (GATE, {"good": {"hits": 0, "items": 0}}, False),
        (GATE, {"good": {"all": {"hits": 950, "items": 1000}}}, True),
        (GATE, {"good": 0.99}, False),  # no interval
        (GATE, {"good": {"value": 0.9, "low": 0.85, "high": 0.95}}, True),
        (GATE, {"good": {"value": 0.9, "low": math.nan, "high": 0.95}}, False),
        (GATE, {"good": {"value": math.nan, "low": 0.85, "high": 0.95}}, False),
        (GATE, {"good": True}, False),
        (GATE, {"good": None}, False),
        (GATE, {"bad": 1.0}, False),
        (GATE, {}, False),
        (EXACT, {"loss": 1.9}, True),
        (EXACT, {"loss": 2.1}, False),
        (EXACT, {"loss": math.nan}, False),
        (EXACT, {"loss": -math.inf}, False),
        (EXACT.model_copy(update={"min_samples": 10}), {"loss": 1.9}, False),
        (EXACT.model_copy(update={"min_samples": 10}), {"loss": {"value": 1.9, "items": 10}}, True),
        (GATE.model_copy(update={"slices": ("a", "b")}), {"good": {"a": {"hits": 950, "items": 1000}}}, False),
    ],
)
def test_a_gate_fails_closed(gate: StageGate, metrics: dict[str, Any], passed: bool) -> None:
    found = decide("g", gate, metrics, {})
    assert found.passed is passed
    assert len(found.words) == len(gate.slices)


@pytest.mark.parametrize(
    ("merged", "sequential", "passed"), [(1.05, 1.0, True), (1.2, 1.0, False), (0.5, 1.0, True), (1.0, None, False)]
)
def test_a_merge_is_held_to_the_sequential_form(merged: float, sequential: float | None, passed: bool) -> None:
    gate = StageGate(metric="loss", within=0.1, at_most=True, exact=True)
    assert decide("g", gate, {"loss": merged}, {"loss": sequential}).passed is passed


def test_a_job_is_judged_by_its_newest_held_out_results(tmp_path: Path) -> None:
    lines = [
        {"update": 5, "held_out": {"loss": 3.0}},
        {"update": 9, "held_out": {"loss": 1.0}},
        {"update": 9, "held_out": {}},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_metrics(tmp_path) == {"loss": 1.0}
    (tmp_path / "metrics.json").write_text('{"loss": 5', encoding="utf-8")
    assert read_metrics(tmp_path) == {}, "damaged metrics are not replaced by others"


def test_results_of_the_dialogue_recipe_are_read(tmp_path: Path) -> None:
    slices = {"teens": {"gates": True, "value": 0.9, "low": 0.87, "high": 0.93, "items": 400, "hits": 360}}
    gates = [{"metric": "crisis preference", "passed": True, "slices": slices}]
    (tmp_path / "metrics.json").write_text(json.dumps({"passed": True, "gates": gates}), encoding="utf-8")
    gate = StageGate(metric="crisis preference", threshold=0.85, slices=("teens",), min_samples=400)
    assert decide("g", gate, read_metrics(tmp_path), {}).passed
    assert not decide("g", gate.model_copy(update={"slices": ("teens", "adults")}), read_metrics(tmp_path), {}).passed


def test_an_override_is_recorded_and_holds_for_these_measurements_alone(tmp_path: Path) -> None:
    text = '[stages.a]\nevaluate = "python judge.py"\n[stages.a.gates.good]\nmetric = "good"\nthreshold = 0.8\n'
    pipeline, out = described(tmp_path, text), tmp_path / "out"
    stage = pipeline.stages["a"]
    out.mkdir()
    (out / "metrics.json").write_text('{"good": {"hits": 7, "items": 10}}', encoding="utf-8")
    assert not judge(pipeline, stage, out)[0].passed
    with pytest.raises(PipelineError, match="needs a reason"):
        override(pipeline, stage, "good", out, "  ")
    with pytest.raises(PipelineError, match="has no gate 'god'"):
        override(pipeline, stage, "god", out, "trial")
    override(pipeline, stage, "good", out, "a trial for one user")
    assert judge(pipeline, stage, out)[0].passed
    assert judge(pipeline, stage, out)[0].reason == "a trial for one user"
    with pytest.raises(PipelineError, match="nothing to override"):
        override(pipeline, stage, "good", out, "again")
    (out / "metrics.json").write_text('{"good": {"hits": 6, "items": 10}}', encoding="utf-8")
    assert not judge(pipeline, stage, out)[0].passed, "other measurements"
    log = pipeline.work / AUDIT
    log.write_text(log.read_text(encoding="utf-8").replace("one user", "all users"), encoding="utf-8")
    with pytest.raises(CorruptError, match="line 1"):
        judge(pipeline, stage, out)
