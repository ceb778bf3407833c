"""`hasten explain`, `hasten doctor --catalogue`, and the page made from the same entries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from rich.padding import Padding
from typer.testing import CliRunner

from benchmarks import catalogue as generator
from benchmarks import pruning_techniques as pruning
from benchmarks.technique_cases import NOT_HERE
from benchmarks.tuning import results
from hasten.cli import doctor, explain
from hasten.cli.main import app
from hasten.core.card import Bottleneck, Card, Numerics
from hasten.core.facts import Facts
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam
from hasten.optimizations import catalogue, measured
from hasten.report import catalogue as told
from hasten.report.evidence import parse, save
from tests.cli.called import printed
from tests.optimizations.contract import Images, facts
from tests.report.sample import bare, full

NAMES = sorted(catalogue())


@dataclass(frozen=True, kw_only=True)
class OnlyGPU(Optimization):
    """Needs a GPU.

    Attributes:
        size: How large,
            in samples.
        mode: How.
    """

    size: int = 3
    mode: Literal["slow", "fast"] = "slow"

    card: ClassVar[Card] = Card(
        name="only_gpu", summary="something for a test", relieves=Bottleneck.COMPUTE, numerics=Numerics.EXACT,
        seam=Seam.MODEL, source="a test", hoped_gain="twice as fast (https://example.org/a)", conflicts=("precision",),
    )  # fmt: skip

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Refuse the CPU."""
        if facts.job.device != "cuda":
            return Fit.no(f"the model runs on {facts.job.device}")
        return Fit.yes(max_gain_frac=0.1, settings=[cls()])


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    save(parse(full()), tmp_path / "evidence.json")
    return tmp_path


# The list.


def test_the_catalogue_as_json_is_a_list_of_all_with_a_figure_or_the_reason_for_none() -> None:
    done = call("doctor", "--catalogue", "--json")
    assert done.exit_code == 0
    entries = json.loads(done.stdout)
    assert [row["name"] for row in entries] == NAMES
    for row in entries:
        card = catalogue()[row["name"]].card
        assert (row["numerics"], row["relieves"], row["summary"]) == (card.numerics, card.relieves, card.summary)
        assert row["source"] == card.source
        assert row["hoped_gain"] == (card.hoped_gain or None)
        assert (row["measured"] is None) == bool(row["why_not_measured"])
        for seen in row["measured"] or ():
            assert 0 < seen["low"] <= seen["ratio"] <= seen["high"]
            assert seen["job"]
            assert seen["machine"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_hoped_for_names_where_it_is_promised(name: str) -> None:
    claim, address = told.claim_words(catalogue()[name].card.hoped_gain)
    assert bool(claim) == bool(address)


@pytest.mark.parametrize("width", [80, 100])
def test_the_catalogue_fits_the_terminal_and_has_every_name_and_gain_whole(width: int) -> None:
    with printed(width) as paper:
        doctor.doctor(catalogued=True)
    shown = paper.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    words = set(re.findall(r"\w+", shown))
    for kind in catalogue().values():
        assert set(re.findall(r"\w+", kind.card.summary)) <= words, "a word is broken"
    for name in NAMES:
        assert re.search(rf"^{name}\b", shown, re.MULTILINE), name
    rows = [row for item in measured().values() for row in item["measured"] or ()]
    assert rows
    for row in rows if width >= 100 else ():
        assert f"{told.gain_words(row)} {told.job_words(row)}" in shown


def test_what_nothing_is_recorded_of_says_so() -> None:
    row = told.entry(OnlyGPU, {})
    assert (row["measured"], row["why_not_measured"]) == (None, told.NOT_TRIED)
    assert row["hoped_gain"] == "twice as fast (https://example.org/a)"


# One of them.


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_explained(name: str) -> None:
    done = call("explain", name)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(name)
    found = json.loads(call("explain", name, "--json").stdout)
    for key in ("relieves_words", "numerics_words", "limits_words", "kept_where", "source"):
        assert found[key], key
    assert found["refused_when"], "its refusals are not read from its source"
    assert [row["name"] for row in found["settings"]] == list(catalogue()[name]().settings())
    assert all(row["words"] for row in found["settings"]), "a setting without a word in the class docstring"


def test_an_explanation_reads_the_source() -> None:
    found = told.explanation(OnlyGPU, {**catalogue(), "only_gpu": OnlyGPU}, {})
    assert found["settings"] == [
        {"name": "size", "default": 3, "choices": None, "words": "How large, in samples."},
        {"name": "mode", "default": "slow", "choices": ["slow", "fast"], "words": "How."},
    ]
    assert found["refused_when"] == ["the model runs on ..."]
    assert found["conflicts"] == ["`only_gpu` and `precision` exclude each other"]


def test_lines_of_a_module_docstring_may_run_on() -> None:
    doc = "Do it.\n\nRelieves:  input: a\n           and b.\nNumerics:  exact: c.\nLimits:    d.\n\nMore: e."
    assert told.docstring_lines(doc) == {"Relieves": "input: a and b.", "Numerics": "exact: c.", "Limits": "d."}


def test_an_explanation_shows_what_your_own_tuning_saw(tuned: Path) -> None:
    rung = next(rung for rung in full()["rungs"] if rung["comparison"] and rung["name"] in NAMES)
    found = json.loads(call("explain", rung["name"], "--json", "--out", str(tuned)).stdout)
    (row,) = found["measured_here"]
    assert (row["ratio"], row["outcome"], row["reason"]) == (rung["comparison"]["ratio"], rung["outcome"], rung["reason"])
    assert row["job"] == full()["job"]["target"]
    shown = call("explain", rung["name"], "--out", str(tuned)).stdout
    assert told.gain_words(row) in shown.partition("Measured here")[2]


def test_an_explanation_without_a_tuning_says_how_to_get_one(tmp_path: Path) -> None:
    assert json.loads(call("explain", "precision", "--json", "--out", str(tmp_path)).stdout)["measured_here"] is None
    with printed(300) as paper:
        explain.explain("precision", out=tmp_path)
    assert f"nothing yet: hasten tune TARGET --out {tmp_path}" in paper.getvalue()


@pytest.mark.parametrize(
    ("name", "near"),
    [("precison", "Did you mean `precision`"), ("cache", "`sample_cache`"), ("zzz", "`zzz`. `hasten doctor --catalogue`")],
)
def test_an_unknown_name_gets_near_ones_and_exit_code_2(name: str, near: str) -> None:
    done = call("explain", name)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert near in done.stderr


@pytest.mark.slow
def test_explain_without_a_terminal_is_plain_text() -> None:
    command = [sys.executable, "-m", "hasten", "explain", "channels_last"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


# What is generated.


def test_what_stays_and_what_goes_follows_from_the_recorded_results() -> None:
    rows = results()["pruning_techniques"]["rows"]
    lines = {row["technique"]: row["lines"] for row in rows}
    assert pruning.table(results(), lines, pruning.shipped()) == rows
    with pytest.raises(ValueError, match="precision is deleted, and its figures say otherwise"):
        pruning.table(results(), lines, pruning.shipped() - {"precision"})


def test_the_shipped_measurements_are_those_of_the_recorded_results() -> None:
    """Outdated? Run `make docs`, or `python -m benchmarks.catalogue`."""
    kinds = generator.shipped()
    found = generator.recorded(kinds, results())
    assert generator.PACKAGED.read_text(encoding="utf-8") == generator.packaged(found)
    assert measured() == json.loads(generator.packaged(found))["optimizations"]


def test_every_measured_figure_is_one_of_a_recorded_rung_or_of_the_benchmark_of_techniques() -> None:
    recorded = {
        (evidence.job.target, rung.name, rung.comparison.ratio)
        for evidence in generator.tunings(results())
        for rung in evidence.rungs
        if rung.comparison
    }
    recorded |= {
        (row["job"], row["technique"], row["comparison"]["ratio"])
        for row in results().get("techniques", {"rows": []})["rows"]
        if row["outcome"] == "measured"
    }
    shipped = {(row["job"], name, row["ratio"]) for name, item in measured().items() for row in item["measured"] or ()}
    assert shipped == {item for item in recorded if item[1] in measured()}
    assert shipped


def tuning(*rungs: dict[str, Any], **job: Any) -> dict[str, Any]:
    """Evidence of a CPU job, with rungs."""
    machine = facts().machine
    return {
        **bare(),
        "job": {"target": "jobs.py:Images", "device": "cpu", "batch_size": Images.batch_size, **job},
        "machine": {"summary": "a machine", **machine.to_dict()},
        "phases": {"forward": 0.5},
        "ceilings": {},
        "rungs": list(rungs),
    }


def rung(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "only_gpu",
        "settings": {},
        "outcome": "refused",
        "reason": "because",
        "predicted_max_gain": None,
    }
    return {**plain, "comparison": None, "numerics": None, **changes}


FASTER = {"ratio": 1.5, "low": 1.2, "high": 1.9, "pairs": 5, "verdict": "faster", "kind": "screening"}


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (tuning(device="cuda"), "not tried in a recorded run yet"),
        (tuning(), "needs a GPU: the model runs on cpu"),
        (tuning(rung(reason="no images"), device="cuda"), "not fitted to any recorded job: no images (Images)"),
        (
            tuning(rung(reason="too little", predicted_max_gain=1.01), device="cuda"),
            "fits Images, but was not run there: too little",
        ),
        (tuning(rung(outcome="failed", reason="hung: it hung")), "failed in a recorded run: hung: it hung (Images)"),
    ],
)
def test_why_nothing_was_measured_is_decided_by_facts(evidence: Any, why: str) -> None:
    found = generator.measurements({"only_gpu": OnlyGPU}, [parse(evidence)])
    assert found == {"only_gpu": {"measured": None, "why_not_measured": why}}


def test_a_refusal_from_facts_that_were_not_recorded_proves_nothing() -> None:
    """A reading that an older tuning did not take is empty; only a refusal that names the GPU says that one is missing."""
    evidence = tuning()
    del evidence["machine"]["cxx_compiler"]
    found = generator.measurements(
        {"compile": catalogue()["compile"], "trim_padding": catalogue()["trim_padding"]}, [parse(evidence)]
    )
    assert {item["why_not_measured"] for item in found.values()} == {told.NOT_TRIED}


def test_a_measured_rung_is_shown_with_job_interval_and_machine() -> None:
    evidence = tuning(rung(outcome="applied", reason="faster", comparison=FASTER, predicted_max_gain=2.0))
    (found,) = generator.measurements(
        {"only_gpu": OnlyGPU}, generator.tunings({"a": {"b": {"evidence": evidence}}})
    ).values()
    assert found["why_not_measured"] is None
    assert told.gain_words(found["measured"][0]) == "1.50x (1.20 to 1.90)"
    page = generator.page({"only_gpu": OnlyGPU}, {"only_gpu": found})
    assert "| [`only_gpu`](#only_gpu) | something for a test | compute | exact | - |" in page
    assert "Claimed elsewhere: twice as fast ([source](https://example.org/a))." in page
    assert "| Images | - | 1.50x (1.20 to 1.90) | applied |" in page
    assert "- `jobs.py:Images`: a machine;" in page


# A technique on a job made for it.


def alone(**changes: Any) -> dict[str, Any]:
    """A result of the benchmark of techniques with one row."""
    row = {
        "technique": "only_gpu", "settings": {"size": 4}, "job": "benchmarks/jobs/some.py:WideJob",
        "job_words": "Wide things", "compared": "the time of updates", "outcome": "measured", "verdict": "faster",
        "reason": "floor 3.0%",
        "comparison": {"ratio": 3.2, "low": 2.9, "high": 3.5, "pairs": 5},
        "memory": {"without_bytes": 800 * 2**20, "with_bytes": 500 * 2**20}, "numerics": {"verdict": "passed"},
        "commit": "abc", "created": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return {"techniques": {"machine": "a machine", "rows": [{**row, **changes}]}}


def test_a_job_made_for_it_is_told_apart_from_what_a_tuning_found() -> None:
    kinds: Any = {"only_gpu": OnlyGPU}
    tuned_row = tuning(rung(outcome="refused", reason="slower", comparison=FASTER, predicted_max_gain=2.0))
    found = generator.recorded(kinds, {"tune_x": {"evidence": tuned_row}, **alone()})
    tuned_seen, seen = found["only_gpu"]["measured"]
    assert found["only_gpu"]["why_not_measured"] is None
    assert not told.is_made_for_it(tuned_seen)
    assert told.is_made_for_it(seen)
    assert (seen["ratio"], seen["low"], seen["high"], seen["verdict"], seen["machine"]) == (
        3.2,
        2.9,
        3.5,
        "faster",
        "a machine",
    )
    assert seen["memory"] is None, "it promises nothing about memory"
    page = generator.page(kinds, found)
    assert "| Images | - | 1.50x (1.20 to 1.90) | refused |" in page
    assert "| on a job made for it (wide things) | size=4 | 3.20x (2.90 to 3.50) | faster |" in page
    assert "- jobs made for one technique each (`benchmarks/jobs`): a machine; 2026-01-02, commit abc" in page
    assert set(tuned_seen) < set(seen)


def test_a_memory_technique_is_shown_with_memory_and_time() -> None:
    kinds = {"only_gpu": catalogue()["microbatch"]}
    slower = {"ratio": 0.8, "low": 0.7, "high": 0.9, "pairs": 5}
    (item,) = generator.recorded(kinds, alone(verdict="slower", comparison=slower)).values()
    (seen,) = item["measured"]
    assert told.memory_words(seen) == "peak memory 800 to 500 MiB"
    assert told.tone(seen) == "open", "time is the price of memory"
    assert told.tone({**seen, "memory": None}) == "bad"
    assert told.tone({**seen, "verdict": "faster"}) == "good"
    words = [str(line.renderable) for line in explain._measured([seen]) if isinstance(line, Padding)]
    assert words[0] == "peak memory 800 to 500 MiB; floor 3.0%"
    assert words[1].startswith("5 pairs, fresh processes; a machine")
    (first, *_) = explain._measured([seen])
    assert str(first).startswith("0.80x (0.70 to 0.90)  slower on a job made for it (wide things)")


@pytest.mark.parametrize(
    ("compared", "words"),
    [
        ("the time of updates", ""),
        ("the time of an epoch", ", by the time of an epoch"),
        ("the time to a target", ", by the time to a target"),
    ],
)
def test_what_a_ratio_is_of_is_said_where_it_is_not_of_updates(compared: str, words: str) -> None:
    kinds: Any = {"only_gpu": OnlyGPU}
    found = generator.recorded(kinds, alone(compared=compared))
    assert f"(wide things) | size=4 | 3.20x (2.90 to 3.50) | faster{words} |" in generator.page(kinds, found)
    (first, *_, last) = explain._measured(found["only_gpu"]["measured"])
    assert f"faster on a job made for it (wide things){words}  size=4" in str(first)
    assert isinstance(last, Padding)
    assert str(last.renderable).startswith("5 pairs, in turns" if "epoch" in compared else "5 pairs, fresh processes")


@pytest.mark.parametrize(
    ("outcome", "reason", "name", "why"),
    [
        ("refused", "no AMX", "matmul_precision", "refused on a job made for it (wide things): no AMX"),
        ("failed", "it hung", "matmul_precision", "failed on a job made for it (wide things): it hung"),
    ],
)
def test_why_a_job_made_for_it_gave_no_figure(outcome: str, reason: str, name: str, why: str) -> None:
    found = generator.recorded(
        {name: catalogue()[name]}, alone(technique=name, outcome=outcome, reason=reason, comparison=None)
    )
    assert found[name] == {"measured": None, "why_not_measured": why}


def test_what_no_benchmark_here_can_measure_says_why() -> None:
    name = "pinned_memory"
    assert generator.measurements({name: catalogue()[name]}, [])[name]["why_not_measured"] == NOT_HERE[name]


@pytest.mark.parametrize(
    ("row", "tone"),
    [
        ({"outcome": "applied", "verdict": "faster"}, "good"),
        ({"outcome": "measured", "verdict": "faster", "how": "made_for_it"}, "good"),
        ({"outcome": "refused", "verdict": "slower"}, "bad"),
        ({"outcome": "refused", "verdict": "same"}, "open"),
        ({"outcome": "refused", "verdict": None}, "open"),
        ({"outcome": "failed", "verdict": None}, "bad"),
    ],
)
def test_colours_tell_kept_from_slower(row: Any, tone: str) -> None:
    assert told.tone(row) == tone
