"""The benchmark of single techniques: its table is complete and valid, and it turns a case into a row."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rows as kept_rows
from benchmarks import techniques
from benchmarks.__main__ import NAMES
from benchmarks.catalogue import shipped
from benchmarks.tables import techniques as technique_tables
from benchmarks.technique_cases import CASES, ELSEWHERE, NOT_HERE, Case
from benchmarks.techniques import Bench, Effort, held_against, measure, peaks, run_techniques
from hasten.core.card import Judge, Numerics
from hasten.core.errors import HastenError, MachineError, PlanError
from hasten.core.job import Job, check_job
from hasten.core.optimization import Fit
from hasten.optimizations import catalogue
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.numerics import GateVerdict
from hasten.tune.search.screening import Screening
from hasten.tune.trials import machine_load
from hasten.tune.trials.samples import Sample

TINY = Effort(pairs=2, arm_s=0.02, gate_s=0.01, slice_s=0.02)
FIRED = [{"name": "it ran", "passed": True, "seen": "once"}]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> kept_rows.Rows:
    monkeypatch.setattr(kept_rows, "ROOT", tmp_path)
    return kept_rows.Rows("some")


# The table.


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_each_case_names_a_technique_with_sound_settings_and_a_job_that_can_be_made(case: Case) -> None:
    optimization = case.optimization()
    assert optimization.card.name == case.technique
    kind = case.job_class()
    assert issubclass(kind, Job)
    check_job(kind())
    path, _, name = case.target.rpartition(":")
    assert Path(path).is_file()
    assert name == kind.__name__
    assert "__doc__" in vars(kind), "tables name a job by the first line of its docstring"
    assert 10 < len(case.job_words()) < 90
    if optimization.card.numerics is Numerics.TRAINING:
        assert kind.quality is not None, "a technique that changes the mathematics is judged by held-out quality"
    if optimization.card.judged_by is Judge.TIME_TO_TARGET:
        assert (kind.num_updates or 10**6) < 10_000, "whole runs are measured"
    if optimization.card.event == "validation":
        assert kind().valid_data() is not None


def test_no_case_appears_twice() -> None:
    assert {key: number for key, number in Counter(case.key for case in CASES).items() if number > 1} == {}


def test_every_technique_is_measured_here_or_elsewhere_or_has_a_reason() -> None:
    """To add a technique, add a line to benchmarks/technique_cases.py: a case, its own benchmark, or a reason for none."""
    places = [{case.technique for case in CASES}, set(ELSEWHERE), set(NOT_HERE)]
    counted = Counter(name for place in places for name in place)
    assert sorted(counted) == sorted(shipped())
    assert {name for name in NOT_HERE if counted[name] > 1} == set()
    assert set(ELSEWHERE.values()) <= set(NAMES)
    assert all(len(reason) > 15 for reason in NOT_HERE.values())


def test_an_invalid_setting_is_refused() -> None:
    with pytest.raises(PlanError, match="colour"):
        Case("precision", {"colour": "blue"}, "small_steps:OnlineJob").optimization()


# From a case to a row.


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_case_is_measured_in_fresh_pairs_unless_it_does_not_fit(
    kept: kept_rows.Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_load, "SPOILT_FRAC", 9.0)  # ignore the load of this machine
    job = "small_steps:OnlineJob"
    cases = [Case("metric_reading", {"every": 5}, job), Case("channels_last", {}, job)]
    said: list[str] = []
    measured, refused = measure(cases, TINY, kept, say=said.append)
    assert measured["outcome"] == "measured", measured["reason"]
    assert measured["verdict"] in {"faster", "slower", "same", "undecided"}
    seen = measured["comparison"]
    assert 0 < seen["low"] <= seen["ratio"] <= seen["high"]
    assert [(s["arm"], s["pair"]) for s in seen["samples"]] == [("A", 0), ("B", 0), ("A", 1), ("B", 1)]
    assert measured["settings"] == {"every": 5}
    assert [check["seen"] for check in measured["evidence"]] == ["5"]
    assert measured["numerics"]["verdict"] == measured["losses"]["verdict"] == "passed"
    assert measured["losses"]["bit_equal"]
    assert all(peak > 50 * 2**20 for peak in measured["memory"].values())
    assert (refused["outcome"], refused["reason"]) == ("refused", "the model has no 2-d convolution")
    assert refused["comparison"] is None
    assert len(said) == 2
    assert "metric_reading(every=5)" in said[0]

    monkeypatch.setattr(techniques, "Bench", None)  # a stopped run is resumed: nothing is measured again
    again = measure(cases, TINY, kept)
    assert [row["created"] for row in again] == [measured["created"], refused["created"]]


class Judged:
    """A technique that fits without facts."""

    @staticmethod
    def fit(_: object) -> Fit:
        return Fit.yes(max_gain_frac=0.5, settings=[])


def outcome_of(
    screened: Screening | Exception, compared: Comparison, case: Case, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the outcome of a case with this screening and comparison."""
    bench = object.__new__(Bench)
    bench.job, bench.effort, bench.facts = case.job_class()(), TINY, None  # type: ignore[assignment]

    def screen(*_: object) -> Screening:
        if isinstance(screened, Exception):
            raise screened
        return screened

    monkeypatch.setattr(bench, "_screened", screen)
    monkeypatch.setattr(bench, "_design", lambda *_: None)
    monkeypatch.setattr(bench, "setting", None, raising=False)
    monkeypatch.setattr(techniques, "catalogue", lambda: {case.technique: Judged})
    monkeypatch.setattr(techniques, "compare", lambda *_: compared)
    return bench.outcome(case)


def passed(verdict: Any = "passed") -> Screening:
    gate = GateVerdict(numerics=Numerics.EXACT, verdict=verdict, why="so it is")
    return Screening(comparison=Comparison(), gate=gate, evidence=FIRED)


def losses(plain: list[float], changed: list[float]) -> Comparison:
    return Comparison(losses={"A": plain, "B": changed})


@pytest.mark.parametrize(
    ("screened", "compared", "outcome", "why"),
    [
        (Screening(comparison=Comparison()), losses([], []), "failed", "did not fire: no check"),
        (
            Screening(comparison=Comparison(), evidence=[*FIRED, {"name": "hits", "passed": False, "seen": "0 of 4"}]),
            losses([], []), "failed", "did not fire: hits: 0 of 4",
        ),
        (passed("failed"), losses([], []), "failed", "the numbers: so it is"),
        (MachineError("jemalloc is not installed"), losses([], []), "refused", "jemalloc is not installed"),
        (HastenError("it hung"), losses([], []), "failed", "it hung"),
        (passed(), Comparison(why="only 1 clean pairs"), "failed", "only 1 clean pairs"),
    ],
)  # fmt: skip
def test_early_refusals_are_recorded_with_the_reason(
    screened: Any, compared: Comparison, outcome: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcome_of(screened, compared, Case("metric_reading", {}, "small_steps:OnlineJob"), monkeypatch)
    assert found["outcome"] == outcome
    assert why in found["reason"]
    assert found.get("verdict") is None


def test_an_exact_technique_whose_timed_losses_differ_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = losses([4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.5, 1.0])
    assert held_against(compared, Numerics.EXACT)["largest_difference"] == 0.5
    assert "from update 2 on" in held_against(compared, Numerics.EXACT)["why"]
    compared.interval = techniques_interval()
    found = outcome_of(passed(), compared, Case("metric_reading", {}, "small_steps:OnlineJob"), monkeypatch)
    assert (found["outcome"], found["verdict"]) == ("failed", None)
    assert held_against(compared, Numerics.ROUNDING)["verdict"] is None


def techniques_interval() -> Any:
    from hasten.core.stats import Interval

    return Interval(2.0, 1.9, 2.1, 5, 0.975)


def test_peak_memory_is_the_median_of_the_processes_of_an_arm() -> None:
    def sample(arm: str, peak: int | None) -> Sample:
        return Sample(
            arm=arm, pair=0, seconds_per_item=1.0, seconds=1.0, items=1, updates=1, cpu_seconds=1.0, foreign_cpu_frac=None,
            major_faults=0, minor_faults=0, spoilt=False, peak_bytes=peak,
        )  # fmt: skip

    found = peaks(Comparison(samples=[sample("A", 7), sample("A", 9), sample("A", 30), sample("B", None)]))
    assert found == {"without_bytes": 9, "with_bytes": None}


# All of them.


def test_some_rows_may_be_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CASES[0], CASES[1]

    def row(case: Case, ratio: float) -> dict[str, Any]:
        comparison = {"ratio": ratio, "low": ratio, "high": ratio, "pairs": 5}
        return {
            "kind": "x", "key": case.key, "technique": case.technique, "settings": {}, "job": "gone.py:GoneJob",
            "job_words": "some job", "outcome": "measured", "verdict": "faster", "reason": "", "comparison": comparison,
            "memory": None, "compared": "the time of an epoch",
        }  # fmt: skip

    old = {"rows": [row(second, 3.0), row(first, 1.0), {**row(first, 9.0), "key": "no longer in the table"}]}
    (tmp_path / "techniques.json").write_text(json.dumps(old), encoding="utf-8")
    written: dict[str, Any] = {}

    def record(name: str, result: dict[str, Any], command: str) -> Path:
        written.update(result, command=command, machine="a machine")
        return tmp_path / f"{name}.json"

    monkeypatch.setattr(kept_rows, "ROOT", tmp_path)
    monkeypatch.setattr(techniques, "RESULTS", tmp_path)
    monkeypatch.setattr(techniques, "record", record)
    monkeypatch.setattr(techniques, "measure", lambda chosen, *_, **__: [row(case, 2.0) for case in chosen])
    run_techniques(3, [first.technique])
    assert [(row["key"], row["comparison"]["ratio"]) for row in written["rows"]] == [(first.key, 2.0), (second.key, 3.0)]
    assert written["outcomes"] == {"faster": 2}
    assert written["command"] == "python -m benchmarks techniques --count 3"
    table = "\n".join(technique_tables.table({**written, "machine": "two cores"}))
    assert f"| `{first.technique}` | some job | 2.00x (2.00 to 2.00) | - | faster, by the time of an epoch |" in table
    assert "2 cases of 2 techniques: 2 faster." in table
    with pytest.raises(HastenError, match="nothing_of_the_kind"):
        run_techniques(3, ["nothing_of_the_kind"])


def test_one_line_adds_a_technique() -> None:
    case = Case("precision", {}, "convolutions:PicturesJob")
    assert case.optimization() == catalogue()["precision"]()
    assert case.job_words() == "2-d convolutions over images"
