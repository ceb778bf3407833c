"""The history of checks: its lines, its change points, and what is made of them."""

from __future__ import annotations

import csv
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.check.ci import junit, markdown, report_to_github, workflow_commands
from hasten.check.history import Record, append, drift_frac, find_changes, otava_csv, read, record_of, trends
from hasten.check.result import AnchorResult, MemoryChange, QualityChange
from hasten.check.trend import render_trends
from hasten.core.errors import HastenError, MachineError
from hasten.core.stats import Verdict
from tests.check.repositories import new_repository
from tests.check.test_result import result
from tests.cli.called import called

MACHINE = {"fingerprint": "f" * 12, "summary": "2 cores, A", "cpu": "A", "accelerators": []}


def record(number: int, slowdown: float = 1.0, **more: Any) -> Record:
    anchor = {
        "commit": f"{0:040x}",
        "verdict": "same",
        "ratio": 1 / slowdown,
        "low": 0.99 / slowdown,
        "high": 1.01 / slowdown,
    }
    fields: dict[str, Any] = {
        "target": "train.py", "when": f"2026-01-{number + 1:02d}T00:00:00+00:00", "commit": f"{number:040x}",
        "seconds_per_item": [slowdown, 1.01 * slowdown, 0.99 * slowdown], "peak_bytes": [100.0, 101.0, 99.0],
        "machine": MACHINE, "verdict": "same", "anchor": anchor if number else None,
    }  # fmt: skip
    return Record(**{**fields, **more})


def stepped(count: int = 16, step: float = 1.08) -> list[Record]:
    """A history that becomes slower for good at its middle, with a noise of 0.5 %."""
    draws = random.Random(0)
    levels = [step if number >= count // 2 else 1.0 for number in range(count)]
    return [
        record(number, level * math.exp(draws.gauss(0, 0.005)) if number else 1.0) for number, level in enumerate(levels)
    ]


def test_a_record_is_one_line_and_the_same_commit_replaces_its_own(tmp_path: Path) -> None:
    path = tmp_path / ".hasten" / "history" / "f.jsonl"
    for item in (
        record(0),
        record(1),
        record(1, 1.5),
        record(1, target="other.py"),
        record(1, machine={**MACHINE, "fingerprint": "g"}),
    ):
        append(path, item)
    records, problems = read(path)
    assert problems == []
    assert [(item.target, item.commit and item.commit[-1], item.fingerprint[0]) for item in records] == [
        ("train.py", "0", "f"), ("train.py", "1", "f"), ("other.py", "1", "f"), ("train.py", "1", "g"),
    ]  # fmt: skip
    assert records[1] == record(1, 1.5)
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "line",
    ["not json", "{}", "[1]", '{"schema": 1}', '{"schema": 9}', "\x00", json.dumps({"schema": 1, "target": "t"})],
)
def test_a_corrupt_line_is_named_skipped_and_kept(tmp_path: Path, line: str) -> None:
    path = tmp_path / "h.jsonl"
    append(path, record(0))
    with path.open("a") as file:
        file.write(line + "\n")
    append(path, record(1))
    records, problems = read(path)
    assert [item.commit for item in records] == [record(0).commit, record(1).commit]
    assert len(problems) == 1
    assert f"{path}:2 is not a record and was skipped" in problems[0]
    assert line in path.read_text()


@pytest.mark.parametrize("times", [[], [0.0], [-1.0], ["x"], [float("nan")]])
def test_times_that_are_none_are_refused(tmp_path: Path, times: list[Any]) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(json.dumps({"schema": 1, **vars(record(0, seconds_per_item=times))}) + "\n")
    assert read(path)[0] == []


def test_a_change_is_found_where_it_is_and_noise_is_none() -> None:
    (trend,) = trends(stepped())
    assert trend.paired
    assert trend.changes == {8: pytest.approx(0.08, abs=0.01)}
    assert trends(stepped(step=1.0))[0].changes == {}
    assert find_changes([1.0, 1.0, 1.5, 1.5]) == {}, "too few records to tell"
    assert find_changes([1.0] * 10 + [1.01] * 10) == {}, "below the floor"


def test_false_changes_are_rare() -> None:
    draws = random.Random(1)
    series = [[math.exp(draws.gauss(0, 0.03)) for _ in range(30)] for _ in range(100)]
    assert sum(bool(find_changes(values)) for values in series) <= 3


def test_a_trend_without_an_anchor_says_that_it_drifts() -> None:
    (trend,) = trends([record(number, 1.0 + 0.1 * number, anchor=None) for number in range(4)])
    assert not trend.paired
    assert trend.slowdown == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert trend.creep == ""


def test_creep_is_told_though_each_step_was_the_same() -> None:
    anchor = {"commit": f"{0:040x}", "verdict": "slower", "ratio": 1 / 1.06, "low": 1 / 1.07, "high": 1 / 1.05}
    (trend,) = trends([record(0), record(1, 1.02), record(2, 1.04), record(3, 1.06, anchor=anchor)])
    assert trend.creep == "The newest commit is slower than the first one: updates take 6.0 % longer."


def test_drift_is_learnt_from_neighbours() -> None:
    assert drift_frac([record(n) for n in range(3)]) is None
    assert drift_frac([record(n, 1.0 + 0.02 * (n % 2)) for n in range(9)]) == pytest.approx(0.059, abs=0.005)


def test_the_csv_for_otava_has_a_row_for_each_commit() -> None:
    (trend,) = trends(stepped())
    rows = list(csv.DictReader(otava_csv(trend).splitlines()))
    assert len(rows) == 16
    assert rows[0] == {
        "time": "2026-01-01T00:00:00+00:00", "commit": f"{0:040x}", "seconds_per_item": f"{record(0).seconds:.9g}",
        "relative_time": "1", "peak_bytes": "100.0",
    }  # fmt: skip


def test_without_ruptures_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(MachineError, match=r"pip install 'hasten\[check\]'"):
        find_changes([1.0] * 20)


def test_a_result_becomes_a_record() -> None:
    measured = {
        "seconds_per_item": [1.0, 2.0],
        "peak_bytes": [1.0],
        "phases_ms": {"data": 1.0},
        "environment": {"threads": 2},
    }
    anchor = AnchorResult(commit="c" * 40, verdict="same", ratio=1.0, low=0.99, high=1.01)
    made = record_of(result(measured=measured, machine=MACHINE, anchor=anchor))
    assert (made.commit, made.base, made.verdict) == ("b" * 40, "a" * 40, "slower")
    assert made.seconds == pytest.approx(math.sqrt(2))
    assert made.anchor is not None
    assert made.anchor["ratio"] == 1.0
    with pytest.raises(HastenError, match="Nothing was recorded"):
        record_of(result())


def test_the_page_escapes_names_and_needs_no_network() -> None:
    page = render_trends(trends([record(n, target="<b>x</b>") for n in range(3)]), ["a <problem>"])
    assert "<b>x</b>" not in page
    assert "a &lt;problem&gt;" in page
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page


def test_the_history_verb_shows_changes_and_writes_files(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "repo", train__py="")
    for item in stepped():
        append(folder / ".hasten" / "history" / "f.jsonl", item)
    done = called("check", "history", "--html", "trend.html", "--csv", "trend.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "% from here on" in done.stdout
    assert (folder / "trend.csv").read_text().startswith("time,commit,")
    assert "plotly" in (folder / "trend.html").read_text().lower()
    found = json.loads(called("check", "history", "--json", cwd=folder).stdout)
    assert found["trends"][0]["changes"][0]["commit"] == f"{8:040x}"
    missing = called("check", "history", "other.py", cwd=folder)
    assert missing.returncode == 3
    assert "no records of other.py" in missing.stderr
    append(folder / ".hasten" / "history" / "f.jsonl", record(0, target="other.py"))
    assert "--csv takes one series, and there are 2" in called("check", "history", "--csv", "x.csv", cwd=folder).stderr


# Continuous integration.


def test_junit_fails_if_slower_and_skips_if_undecided() -> None:
    from xml.etree import ElementTree as ET

    for verdict, child in ((Verdict.SLOWER, "failure"), (Verdict.UNDECIDED, "skipped"), (Verdict.SAME, None)):
        suites = ET.fromstring(junit(result(verdict, target="train.py <a> & \x1b[0m")))  # noqa: S314 - our own text
        (case,) = suites.iter("testcase")
        assert case.get("name") == "train.py <a> & [0m"
        assert [item.tag for item in case if item.tag != "system-out"] == ([child] if child else [])
        assert suites.get("failures") == ("1" if verdict is Verdict.SLOWER else "0")


def harmed(**more: Any) -> Any:
    return result(
        memory=MemoryChange(base_bytes=100.0, candidate_bytes=200.0, ratio=2.0, verdict="more"),
        quality=QualityChange(metric="held-out loss", verdict="worse", why="a | b"),
        anchor=AnchorResult(commit="c" * 40, verdict="slower", ratio=0.9, low=0.88, high=0.92),
        **more,
    )


def test_annotations_cannot_be_broken_out_of() -> None:
    lines = workflow_commands(harmed(why="100 %\n::error::injected"), Path("a,b:c.py"))
    assert len(lines) == 4
    assert lines[0].startswith("::error file=a%2Cb%3Ac.py,title=Training speed%3A slower::slower: ")
    assert lines[0].endswith("100 %25%0A::error::injected")
    assert not any("\n" in line for line in lines)
    assert [line.partition(" ")[0] for line in lines[1:]] == ["::warning"] * 3
    assert workflow_commands(result(Verdict.SAME))[0].startswith("::notice title=")


def test_the_summary_is_a_table() -> None:
    text = markdown(harmed(warnings=("look | out",)))
    assert text.startswith("### ❌ Training speed: slower\n")
    assert "| quality | held-out loss worse: a \\| b |" in text
    assert "| warning | look \\| out |" in text
    assert "| data | 1.0 ms | 2.0 ms |" in text


def test_github_gets_both_and_nobody_else_does(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    assert report_to_github(result(), None, {"GITHUB_STEP_SUMMARY": str(summary)}) == []
    lines = report_to_github(result(), None, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    assert lines[0].startswith("::error")
    assert summary.read_text().startswith("before\n### ❌")
