"""Rows are written as they are measured, reused if the same code is measured again, and shown unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record as record_module
from benchmarks import result_file
from benchmarks.groundtruth import score, table
from benchmarks.groundtruth.truth import load_truth
from benchmarks.record import measured_commit
from benchmarks.result_file import ResultFile, machines
from hasten.core.machine import read_machine

NAMES = ("slow_decode", "recompiles", "one_thread", "clean_mlp")
PLACE = f"slow_decode.py:{load_truth()['slow_decode'].lines[0]}"
PROFILE = {"outcome": "profiled", "named": "input", "share": 0.5, "words": "It reads.", "places": [PLACE]}
TUNE = {
    "outcome": "tuned",
    "rungs": [{"name": "sample_cache", "outcome": "applied", "reason": "", "predicted_max_gain": 2.0, "ratio": 1.9}],
    "final": {},
}
ROUNDS = [{"round": n, "seconds": {"unwatched": [2e-3], "watched by hasten": [2.02e-3]}} for n in range(3)]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a separate folder of results, with a commit without changes."""
    monkeypatch.setattr(record_module, "RESULTS", tmp_path)
    monkeypatch.setattr(result_file, "RESULTS", tmp_path)
    monkeypatch.setattr(result_file, "measured_commit", lambda: "abc")
    return tmp_path / "groundtruth.json"


def opened() -> ResultFile:
    return ResultFile("groundtruth", "score", score.whole)


def scripts(measures: dict[str, Callable[[Any], dict[str, Any]]], *, again: bool = False) -> None:
    score.run_scripts(opened(), load_truth(list(NAMES)), measures, again=again)


def test_a_row_is_written_as_soon_as_it_is_measured(results: Path) -> None:
    seen: list[list[str]] = []

    def measure(case: Any) -> dict[str, Any]:
        rows = json.loads(results.read_text())["rows"] if results.exists() else []
        seen.append([row["name"] for row in rows if row["profile"]])
        return dict(PROFILE)

    scripts({"profile": measure})
    assert seen == [[], *(list(NAMES[:count]) for count in (1, 2, 3))]


def test_what_was_measured_at_this_commit_is_not_measured_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def measure(case: Any) -> dict[str, Any]:
        called.append(case.name)
        return dict(PROFILE)

    scripts({"profile": measure})
    scripts({"profile": measure})
    assert called == list(NAMES)
    scripts({"profile": measure}, again=True)
    assert len(called) == 2 * len(NAMES)
    monkeypatch.setattr(result_file, "measured_commit", lambda: "def")
    scripts({"profile": measure})
    assert len(called) == 3 * len(NAMES)
    monkeypatch.setattr(result_file, "measured_commit", lambda: "def+changes")
    scripts({"profile": measure})
    scripts({"profile": measure})
    assert len(called) == 5 * len(NAMES)  # the changes are not recorded


def test_another_part_leaves_the_first_as_it_was(results: Path) -> None:
    scripts({"profile": lambda _: dict(PROFILE)})
    scripts({"tune": lambda _: dict(TUNE)})
    rows = {row["name"]: row for row in json.loads(results.read_text())["rows"]}
    assert rows["slow_decode"]["profile"]["diagnosed"]
    assert rows["slow_decode"]["tune"]["remedied"]
    assert rows["slow_decode"]["tune"]["commit"] == "abc"
    assert rows["clean_mlp"]["tune"] is None  # nothing to remedy
    assert rows["recompiles"]["tune"] is None  # the catalogue has nothing


def test_parts_of_another_machine_stay_until_they_are_measured_here(results: Path) -> None:
    scripts({"profile": lambda _: dict(PROFILE)})
    found = json.loads(results.read_text())
    for row in found["rows"]:
        (row["profile"] or {}).pop("where", None)
    results.write_text(json.dumps({**found, "machine": "there", "machine_fingerprint": "another"}))
    assert machines(opened().rows.values()) == "there"
    assert not opened().fresh(opened().rows["slow_decode"]["profile"])
    scripts({"profile": lambda _: dict(PROFILE)})
    assert opened().fresh(opened().rows["slow_decode"]["profile"])
    assert machines(opened().rows.values()) == read_machine().summary()


def test_result_files_are_no_change_of_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words], check=True)

    monkeypatch.setattr(record_module, "ROOT", tmp_path)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "code.py").write_text("1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    clean = measured_commit()
    assert not clean.endswith("+changes")
    (tmp_path / "benchmarks" / "results" / "found.json").write_text("{}\n")
    assert measured_commit() == clean
    (tmp_path / "code.py").write_text("2\n")
    assert measured_commit() == f"{clean}+changes"


@pytest.mark.parametrize(
    ("words", "traceml", "parts"),
    [
        ([], None, ["profile", "tune"]),
        (["--no-tune"], None, ["profile"]),
        (["--part", "tune"], None, ["tune"]),
        (["--part", "traceml"], None, []),
        (["--part", "traceml", "profile"], Path(sys.executable), ["profile", "traceml"]),
    ],
)
def test_the_parts_that_are_asked_for_are_measured(
    words: list[str], traceml: Path | None, parts: list[str], monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    measured: list[str] = []
    costs: list[Any] = []

    def run(_kept: ResultFile, cases: Any, measures: Any, *, again: bool) -> None:
        measured.extend(measures)

    monkeypatch.setattr(score, "run_scripts", run)
    monkeypatch.setattr(score, "run_cost", lambda *_, **options: costs.append(options))
    score.main([*words, *(["--traceml", str(traceml)] if traceml else [])])
    assert measured == parts
    assert bool(costs) == (not words or words == ["--no-tune"])
    assert results.exists()


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit):
        score.main(["--part", "all"])


def test_a_traceml_without_what_the_scripts_import_is_refused(results: Path, tmp_path: Path) -> None:
    command, lacking = tmp_path / "traceml", tmp_path / "python"
    for missing in (command, lacking):
        with pytest.raises(SystemExit, match=f"There is no file {missing}"):
            score.main(["--part", "traceml", "--traceml", str(command)])
        command.touch()
    lacking.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # without site-packages
    lacking.chmod(0o755)
    with pytest.raises(SystemExit, match="cannot run the scripts: ModuleNotFoundError: No module named 'numpy'"):
        score.main(["--part", "traceml", "--traceml", str(command)])
    assert not results.exists()


def test_no_script_is_measured_where_one_is_unknown(results: Path) -> None:
    with pytest.raises(Exception, match="There is no script nothing"):
        score.main(["--only", "nothing"])
    assert not results.exists()


def test_the_tables_show_every_script_and_every_figure(results: Path) -> None:
    kept = opened()
    for name in NAMES:
        kept.put(name, "profile", dict(PROFILE))
    kept.put("slow_decode", "tune", dict(TUNE))
    answers = {"plain": answer("INSUFFICIENT_STEP_TIME_DATA"), "marked": answer("INPUT_BOUND")}
    kept.put("slow_decode", "traceml", {**answers, "version": "0.5.0"})
    kept.put_beside("own_cost_hasten_2ms", {"arms": ["unwatched", "watched by hasten"], "rounds": ROUNDS})
    result = json.loads(results.read_text())
    text = "\n".join(part(result) for part in (table.score, table.rival, table.cost, table.scripts))
    assert "| bottleneck named right | 33.3% | at least 90% | no |" in text
    assert "| false alarms on clean scripts | 1 | at most 0 | no |" in text
    assert "| cost of watching, steps of 2 ms | 1.0% | at most 3% | yes |" in text
    assert "| cost of watching, steps of 100 ms | not measured | at most 1% | - |" in text
    assert "| 2.00 ms | watched by hasten | in one process | +1.00% | +1.00% to +1.00% | +20 µs | 3 |" in text
    assert "| TraceML 0.5.0, steps marked in the script | 1 of 1 | 1 of 1 | 0 of 0 |" in text
    assert "| input | input 50% (right) | right | kept: sample_cache, 1.90x | input bound (right) |" in text
    assert "| compute | input 50% (wrong) | - | none to find | - |" in text  # the clean one
    assert text.count("\n| `") == len(load_truth())
    assert table.headline(result).startswith("1 of 3 bottlenecks named right; false alarms on 1 of 1 clean scripts")


def answer(kind: str) -> dict[str, Any]:
    return {"kind": kind, "status": kind, "summary": "", "memory": [], "phase": None, "seconds": 1.0}


def test_the_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        score.main(["--help"])
    said = capsys.readouterr().out
    assert all(part in said for part in score.PARTS)


def test_results_name_no_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.setattr(sys, "prefix", str(link))
    found = record_module.without_paths(
        {"a": [f"{link}/bin/python"], "b": f"{real}/lib/libgomp.so", "c": f"{record_module.ROOT}/x"}
    )
    assert found == {"a": ["<environment>/bin/python"], "b": "<environment>/lib/libgomp.so", "c": "./x"}
