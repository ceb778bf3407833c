"""Verdicts of a check, from measured values alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hasten.check.repository import Version
from hasten.check.result import (
    STATUS,
    AnchorResult,
    CheckResult,
    PhaseChange,
    change_words,
    changed_phase,
    conclude,
    joined,
    memory_change,
    quality_change,
)
from hasten.check.subject import environment_differences, import_paths
from hasten.core.job import Quality
from hasten.core.stats import TRAINING_LOSS, Interval, Verdict
from hasten.report import schema
from hasten.tune.proof.compare import Comparison, read_look
from hasten.tune.trials.samples import Sample


def sample(arm: str, pair: int, seconds: float, **more: Any) -> Sample:
    return Sample(
        arm=arm, pair=pair, seconds_per_item=seconds, seconds=seconds, items=1, updates=1, cpu_seconds=seconds,
        foreign_cpu_frac=0.0, major_faults=0, minor_faults=0, spoilt=False, **more,
    )  # fmt: skip


def session(factor: float, *, pairs: int = 5, noise: float = 0.002) -> Comparison:
    """A comparison whose candidate takes `factor` times as long."""
    comparison = Comparison()
    for pair in range(pairs):
        wave = 1.0 + noise * math.sin(3.0 * pair)
        comparison.samples += [sample("A", pair, 1.0 / wave), sample("B", pair, factor * wave)]
        for arm in "AB":
            comparison.metrics[arm].append({})
    read_look(comparison, 0.03)
    return comparison


@pytest.mark.parametrize(
    ("factors", "verdict", "words"),
    [
        ((1.0,), Verdict.SAME, "noise floor"),
        ((0.8,), Verdict.FASTER, "noise floor"),
        ((1.2, 1.2), Verdict.SLOWER, "confirmed with fresh processes in a second session"),
        ((1.2, 1.0), Verdict.UNDECIDED, "slower in the first session, but same in its repetition"),
        ((1.2, 0.8), Verdict.UNDECIDED, "but faster in its repetition"),
        ((1.2,), Verdict.UNDECIDED, "no time was left to confirm it"),
    ],
)
def test_a_slower_verdict_must_recur(factors: tuple[float, ...], verdict: Verdict, words: str) -> None:
    found, why = conclude([session(factor) for factor in factors])
    assert found is verdict
    assert words in why


def test_a_repetition_that_measured_nothing_confirms_nothing() -> None:
    assert conclude([session(1.2), Comparison()])[0] is Verdict.UNDECIDED


def test_the_interval_covers_the_pairs_of_all_sessions() -> None:
    interval = joined([session(1.2), session(1.3)])
    assert interval is not None
    assert interval.pairs == 10
    assert interval.low < 1 / 1.25 < interval.high
    assert joined([Comparison()]) is None


def test_the_change_is_said_as_time() -> None:
    assert change_words(Interval(1 / 1.07, 1 / 1.09, 1 / 1.05, 5, 0.975)) == "updates take 7.0 % longer (5.0 % to 9.0 %)"
    assert change_words(Interval(2.0, 1.6, 2.5, 5, 0.975)) == "updates take 50.0 % less time (37.5 % to 60.0 %)"
    assert change_words(Interval(0.25, 0.2, 0.5, 5, 0.975)) == "updates take 4.00 times as long (2.00 to 5.00)"


def test_the_phase_that_changed_is_named() -> None:
    base = {"data": 4.0, "forward": 10.0, "backward": 20.0}
    slower = changed_phase(base, {**base, "data": 9.0, "forward": 10.5}, Verdict.SLOWER)
    assert slower.named == "data"
    assert slower.words == "most of the change is in data: 4.0 ms -> 9.0 ms an update"
    assert changed_phase(base, {**base, "data": 1.0}, Verdict.FASTER).named == "data"
    spread = changed_phase(base, {name: 1.2 * time for name, time in {**base, "forward": 20.0}.items()}, Verdict.SLOWER)
    assert spread.named == "forward"
    even = changed_phase({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 2.0, "b": 2.0, "c": 2.0}, Verdict.SLOWER)
    assert even.words == "the change is spread over several phases"
    assert changed_phase({}, {}, Verdict.SLOWER).named == ""


def test_memory_grows_or_not() -> None:
    base = [100.0, 101.0, 100.0, 100.5, 99.8]
    more = memory_change(base, [1.3 * size for size in base])
    assert more is not None
    assert (more.verdict, round(more.ratio, 2)) == ("more", 1.3)
    assert [found.verdict for factor in (1.0, 0.7) if (found := memory_change(base, [factor * b for b in base]))] == [
        "same",
        "less",
    ]
    assert memory_change([1.0], [2.0]) is None
    assert memory_change([0.0, 0.0], [0.0, 0.0]) is None


def with_metrics(base: list[dict[str, float]], candidate: list[dict[str, float]]) -> Comparison:
    return Comparison(metrics={"A": base, "B": candidate})


def test_the_held_out_quality_of_jobs_and_the_training_loss_of_scripts_are_judged() -> None:
    quality = Quality(metric="accuracy", direction="max", margin=0.05)
    base = [{"accuracy": value} for value in (0.8, 0.81, 0.79, 0.8, 0.8)]
    worse = quality_change([with_metrics(base, [{"accuracy": m["accuracy"] - 0.2} for m in base])], quality, of_script=False)
    assert worse is not None
    assert worse.verdict == "worse"
    assert worse.metric == "held-out accuracy"
    losses = [{TRAINING_LOSS: value} for value in (1.0, 1.01, 0.99, 1.0, 1.0)]
    same = quality_change([with_metrics(losses, losses)], None, of_script=True)
    assert same is not None
    assert same.verdict == "not_worse"
    grown = quality_change(
        [with_metrics(losses, [{TRAINING_LOSS: 2 * m[TRAINING_LOSS]} for m in losses])], None, of_script=True
    )
    assert grown is not None
    assert grown.verdict == "worse"


def test_versions_without_a_common_metric_are_undecided_and_say_why() -> None:
    quality = Quality(metric="accuracy", direction="max", margin=0.05)
    found = quality_change([with_metrics([{"accuracy": 0.8}] * 3, [{"f1": 0.8}] * 3)], quality, of_script=False)
    assert found is not None
    assert found.verdict == "undecided"
    assert found.why == "the candidate's metric() does not return 'accuracy', which the base's quality names"
    assert quality_change([with_metrics([{TRAINING_LOSS: 1.0}], [])], None, of_script=True) is None


def test_differences_of_the_environment_are_named() -> None:
    base = {"python": "3.11.1", "threads": 2, "packages": {"numpy": "1.0", "torch": "2"}}
    candidate = {"python": "3.12.0", "threads": 1, "packages": {"numpy": "2.0", "torch": "2", "extra": "1"}}
    assert environment_differences(base, candidate) == [
        "python: 3.11.1 -> 3.12.0",
        "threads: 2 -> 1",
        "extra: not imported -> 1",
        "numpy: 1.0 -> 2.0",
    ]
    assert environment_differences(base, base) == []


def test_what_is_imported_from_the_repository_comes_from_the_version(tmp_path: Any) -> None:
    root, tree, other = tmp_path / "repo", tmp_path / "tree", tmp_path / "other"
    for folder in (root / "src", root / "lib", other):
        folder.mkdir(parents=True)
    present = [str(root / "src"), str(other), str(root / "missing"), ""]
    paths = import_paths(tree, root, present[:3], {"PYTHONPATH": f"{other}:{root / 'lib'}"})
    assert paths == [str(tree / "lib"), str(tree / "src"), str(other)]


def result(verdict: Verdict = Verdict.SLOWER, **more: Any) -> CheckResult:
    """A finished check."""
    sessions = (session(1.2), session(1.2))
    fields: dict[str, Any] = {
        "target": "train.py", "method": "paired", "verdict": verdict, "why": "confirmed", "interval": joined(sessions),
        "floor_frac": 0.03, "base": Version(name="aaa (main)", commit="a" * 40),
        "candidate": Version(name="bbb", commit="b" * 40), "sessions": sessions,
        "phases": PhaseChange(base_ms={"data": 1.0}, candidate_ms={"data": 2.0}, named="data"),
    }  # fmt: skip
    return CheckResult(**{**fields, **more})


def test_a_result_says_everything_and_is_json() -> None:
    anchor = AnchorResult(commit="c" * 40, verdict="slower", ratio=0.9, low=0.88, high=0.92)
    change = "updates take 11.1 % longer (8.7 % to 13.6 %)"
    found = result(warnings=("look out",), environment=("threads: 2 -> 1",), equal_losses=True, anchor=anchor)
    assert found.headline.startswith("slower: updates take 20.")
    assert found.details() == [
        "bbb against aaa (main): paired",
        "most of the change is in data: 1.0 ms -> 2.0 ms an update",
        "the training losses are bit-equal",
        "environment: threads: 2 -> 1",
        f"against the anchor {'c' * 12}: slower: {change}; small slowdowns have added up",
        "warning: look out",
    ]
    text = json.loads(json.dumps(schema.write(found.to_dict())))
    assert (text["verdict"], text["status"], text["pairs"], len(text["sessions"])) == ("slower", 1, 10, 2)
    assert {verdict: result(verdict).status for verdict in Verdict} == STATUS
    assert STATUS == {"faster": 0, "same": 0, "slower": 1, "undecided": 2}
