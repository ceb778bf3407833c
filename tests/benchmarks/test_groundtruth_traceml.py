"""Comparison with TraceML: its answers are read unchanged, and judged as favourably as its documentation allows."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.groundtruth import marked, traceml
from benchmarks.groundtruth.marked import Marks, mark
from benchmarks.groundtruth.traceml import judge_answer, read_summary, run_traceml, traceml_score
from benchmarks.groundtruth.truth import Case, load_truth

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = load_truth()
TOLD = {"kind": "INPUT_BOUND", "status": "INPUT-BOUND", "severity": "crit", "summary": "Input wait is 94%."}


@pytest.mark.parametrize(
    ("name", "answer", "answered", "right"),
    [
        ("slow_decode", {"kind": "INPUT_BOUND"}, True, True),
        ("slow_decode", {"kind": "COMPUTE_BOUND"}, True, False),
        ("slow_decode", {"kind": "INSUFFICIENT_STEP_TIME_DATA"}, False, False),
        ("slow_decode", {"kind": None, "why": "exit code 1"}, False, False),
        ("slow_decode", {"kind": "NO_CLEAR_PERFORMANCE_BOTTLENECK"}, True, False),
        ("print_each_step", {"kind": "RESIDUAL_HEAVY"}, True, True),
        ("sync_checkpoint", {"kind": "RESIDUAL_HEAVY"}, True, True),
        ("fp32_matmuls", {"kind": "COMPUTE_BOUND", "phase": "forward"}, True, True),
        ("fp32_matmuls", {"kind": "RESIDUAL_HEAVY"}, True, False),
        ("many_small_tensors", {"kind": "COMPUTE_BOUND", "phase": "optimizer"}, True, True),
        ("many_small_tensors", {"kind": "COMPUTE_BOUND", "phase": "backward"}, True, False),
        ("padding_waste", {"kind": "COMPUTE_BOUND", "phase": "forward"}, True, False),
        ("unpinned_copies", {"kind": "H2D_BOUND"}, True, True),
        ("memory_growth", {"kind": "INSUFFICIENT_STEP_TIME_DATA", "memory": ["CREEP_CONFIRMED"]}, True, True),
        ("slow_decode", {"kind": "INSUFFICIENT_STEP_TIME_DATA", "memory": ["HIGH_PROCESS_RSS"]}, True, False),
        ("clean_mlp", {"kind": "COMPUTE_BOUND"}, True, True),
        ("clean_mlp", {"kind": "NO_CLEAR_PERFORMANCE_BOTTLENECK"}, True, True),
        ("clean_mlp", {"kind": "RESIDUAL_HEAVY"}, True, False),
        ("clean_mlp", {"kind": "INSUFFICIENT_STEP_TIME_DATA"}, False, False),
    ],
)
def test_an_answer_is_right_where_its_category_contains_the_truth(
    name: str, answer: dict[str, Any], answered: bool, right: bool
) -> None:
    assert judge_answer(CASES[name], answer) == {"answered": answered, "right": right}


def test_its_summary_is_kept_in_its_own_words() -> None:
    found = read_summary(
        {
            "schema_version": 1.9,
            "primary_diagnosis": {**TOLD, "evidence": {"steps_analyzed": 256}},
            "step_time": {"diagnosis": {"phase": "input"}},
            "process": {"issues": [{"kind": "HIGH_PROCESS_CPU"}, {"kind": "HIGH_PROCESS_RSS"}]},
            "step_memory": None,
        }
    )
    assert found == {**TOLD, "steps": 256, "phase": "input", "memory": ["HIGH_PROCESS_RSS"], "schema": 1.9}


def test_its_score_counts_arms_apart() -> None:
    def row(case: Case, plain: str, marked_kind: str) -> dict[str, Any]:
        arms = {"plain": {"kind": plain}, "marked": {"kind": marked_kind}}
        return {"clean": case.clean, "traceml": traceml.judge_traceml(case, arms)}

    nothing = "INSUFFICIENT_STEP_TIME_DATA"
    rows = [
        row(CASES["slow_decode"], nothing, "INPUT_BOUND"),
        row(CASES["one_thread"], nothing, "INPUT_BOUND"),
        row(CASES["clean_mlp"], nothing, "INPUT_BOUND"),
        {"clean": False, "traceml": None},
    ]
    found = traceml_score(rows)
    assert found is not None
    assert found["plain"] == {
        "injected": 2, "answered": 0, "right": 0, "clean": 1, "clean_answered": 0, "clean_false_alarms": 0
    }  # fmt: skip
    assert (found["marked"]["answered"], found["marked"]["right"], found["marked"]["clean_false_alarms"]) == (2, 1, 1)
    assert traceml_score([{"clean": False, "traceml": None}]) is None


PLAYED = """#!{python}
import json, pathlib, sys
words = sys.argv
folder = pathlib.Path(words[words.index("--logs-dir") + 1]) / words[words.index("--run-name") + 1]
folder.mkdir()
told = {{"kind": words[2].rpartition("/")[2], "status": " ".join(words[words.index("--args") + 1:]),
         "severity": "info", "summary": ""}}
(folder / "final_summary.json").write_text(json.dumps({{"primary_diagnosis": told}}))
"""


@pytest.mark.slow
def test_it_is_called_on_the_script_itself_and_on_the_marked_one(tmp_path: Path) -> None:
    import sys

    command = tmp_path / "traceml"
    command.write_text(PLAYED.format(python=sys.executable))
    command.chmod(0o755)
    case = CASES["one_thread"]
    plain = run_traceml(command, case, marked=False)
    assert (plain["kind"], plain["status"]) == ("one_thread.py", f"--steps {case.steps}")
    with_marks = run_traceml(command, case, marked=True)
    assert (with_marks["kind"], with_marks["status"]) == ("marked.py", f"{case.script} --steps {case.steps}")


@pytest.mark.slow
def test_its_version_is_reported_by_its_python(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho 9.8\n")
    (tmp_path / "python").chmod(0o755)
    assert traceml.version_of(tmp_path / "traceml") == "9.8"
    assert traceml.version_of(tmp_path / "nowhere" / "traceml") == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "why"), [("echo gone; exit 3", "exit code 3: gone"), ("sleep 60", "not finished within 1 s")]
)
def test_a_run_that_fails_is_no_answer_and_says_why(
    body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traceml, "LIMIT_S", 1.0)
    command = tmp_path / "traceml"
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    found = run_traceml(command, CASES["one_thread"], marked=False)
    assert (found["kind"], found["why"]) == (None, why)


def test_a_step_is_marked_from_its_first_work_to_the_optimizers_step(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def trace_step(model: Any) -> Iterator[None]:
        said.append(f"begin {type(model).__name__}")
        yield
        said.append("end")

    handles: list[Any] = []
    kept = lambda hook: handles.append(register_optimizer_step_post_hook(hook))  # noqa: E731 - a line for a test
    monkeypatch.setattr(marked, "register_optimizer_step_post_hook", kept)
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", torch.optim.Optimizer.zero_grad)
    mark(Marks(trace_step))
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):  # two parts of one update
                model(torch.ones(1, 2)).sum().backward()
            said.append("before the step")
            optimizer.step()
            with torch.no_grad():
                model(torch.ones(1, 2))  # an evaluation is not part of a step
    finally:
        for handle in handles:
            handle.remove()
    assert said == ["begin Sequential", "before the step", "end"] * 2
