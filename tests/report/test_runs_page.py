"""The pages of runs: what they draw of windows, alerts and reports, and that a browser draws it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.cli.runs_page import NO_WINDOWS, alert_spans, gather, open_any
from hasten.core.errors import HastenError, MachineError
from hasten.report.images import save_plots
from hasten.report.runs import MOST_POINTS, RunFacts, Track, render_runs, run_plots, thinned
from tests.monitor.test_alerts import ALERT
from tests.monitor.test_watch import PLAN, write_run
from tests.report.browser import chromium, open_page
from tests.train.runs import trained

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def said(*words: object) -> str:
    """Return what `hasten runs` prints, or raise its error."""
    done = CliRunner().invoke(app, ["runs", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_thinning_keeps_the_least_and_the_largest_values() -> None:
    values = [math.sin(place / 1000) for place in range(100_000)]
    values[41_234], values[77_777] = 50.0, -50.0
    kept = thinned(values)
    assert len(kept) <= MOST_POINTS
    assert kept == sorted(set(kept))
    assert {41_234, 77_777} <= set(kept)
    assert thinned([1.0, 2.0]) == [0, 1]


def test_large_runs_are_thinned_and_their_phases_stay_aligned() -> None:
    rows = [(step, {"training.step_time": 0.1 + step % 7, "phase.data": 0.05, "phase.new": 0.01}) for step in range(50_000)]
    run = RunFacts(name="a", state="finished", tracks=[Track(name="a", rank=0, begin=0, rows=rows)])
    plots: Any = run_plots([run])
    areas = {area["name"]: area for area in plots["phases-0"]["data"]}
    assert list(areas) == ["data", "new", "other"]
    assert all(
        area["x"] == areas["data"]["x"] and len(area["x"]) == len(area["y"]) <= MOST_POINTS + 1 for area in areas.values()
    )
    assert sum(area["y"][9] for area in areas.values()) == pytest.approx(0.1 + areas["data"]["x"][9] % 7)
    assert len(plots["step"]["data"][0]["x"]) <= MOST_POINTS


def test_a_run_has_its_band_its_alerts_and_its_ranks(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", alert=True, plan=PLAN)
    write_run(folder, rank=1)
    run = gather(open_any(folder))  # windows without a record: the run of a script
    plots: Any = run_plots([run])
    assert [track.rank for track in run.tracks] == [0, 1]
    assert {"phases-0", "phases-1"} <= set(plots)
    assert [line["name"] for line in plots["step"]["data"]] == ["a rank 0", "a rank 1"]
    bands = [shape for shape in plots["phases-0"]["layout"]["shapes"] if shape.get("xref") == "paper"]
    assert [(band["y0"], band["y1"]) for band in bands] == [(0.09, 0.11)]
    shaded = [shape for shape in plots["phases-0"]["layout"]["shapes"] if shape.get("yref") == "paper"]
    assert [shape["x0"] for shape in shaded] == [ALERT.since_step]
    assert not [shape for shape in plots["phases-1"]["layout"]["shapes"] if shape.get("yref") == "paper"]
    page = render_runs([run])
    for words in (ALERT.rule, ALERT.words, "fused_optimizer", "what the plan was proved to take", "no record"):
        assert words in page


def test_an_alert_ends_when_it_is_resolved() -> None:
    again = replace(ALERT, since_step=900)
    ended = alert_spans([replace(ALERT, state="pending"), ALERT, replace(ALERT, state="resolved", step=700), again])
    assert [(span["from_step"], span["to_step"]) for span in ended] == [(ALERT.since_step, 700), (900, None)]


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", alert=True)
    whole = gather(open_any(folder))
    lines = (folder / "windows.jsonl").read_bytes().splitlines()
    odd = {**json.loads(lines[5]), "phases": [1], "to_step": "x"}
    damaged = [*lines[:5], lines[5][:40], b"\xff\xfe", b"[]", json.dumps(odd).encode(), *lines[6:]]
    (folder / "windows.jsonl").write_bytes(b"\n".join(damaged) + b'\n{"kind": "win')
    for name in ("alerts.jsonl", "metrics.jsonl", "incidents.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'\n\xff{"kind"')
    run = gather(open_any(folder))
    assert len(run.tracks[0].rows) == len(whole.tracks[0].rows) - 1
    assert run.alerts == whole.alerts
    assert "phases-0" in run_plots([run])


def test_a_run_without_windows_shows_its_reports(tmp_path: Path) -> None:
    folder = trained(tmp_path / "old")
    assert not (folder / "windows.jsonl").exists()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*lines, *lines[-2:], '{"update": null}\n']))  # resumed, and damaged
    run = gather(open_any(folder))
    plots: Any = run_plots([run])
    steps = plots["loss"]["data"][0]["x"]
    assert steps[-1] == 12
    assert steps == sorted(set(steps))
    assert set(plots["held-out-loss"]["data"][0]["x"]) == {6, 12}
    assert NO_WINDOWS in run.notes
    assert "windows.jsonl" in render_runs([run])


def test_the_command_writes_a_safe_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", alert=True, plan=PLAN)
    with (tmp_path / "a" / "incidents.jsonl").open("w") as file:
        file.write(
            json.dumps({"kind": "spike", "update": 3, "words": f"in /home/me/x.py {ATTACK}", "action": "none"}) + "\n"
        )
    write_run(tmp_path / "b")
    assert "Wrote a.html" in said("show", "a", "--html")
    page = (tmp_path / "a.html").read_text()
    assert ATTACK not in page
    assert "/home/me" not in page
    assert page.count("<script") == 3
    assert "Wrote both.html" in said("compare", "a", "b", "--html", "both.html")
    assert "does not prove" in (tmp_path / "both.html").read_text()
    assert json.loads(said("show", "b", "--json"))["state"] == "unknown"
    with pytest.raises(HastenError, match="Cannot write"):
        said("show", "a", "--html", tmp_path / "b")


def test_plots_need_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="apt-get install chromium"):
        save_plots("", tmp_path / "plots")


@pytest.mark.slow
def test_a_browser_draws_and_exports_the_plots(tmp_path: Path) -> None:
    chromium()
    write_run(tmp_path / "a", alert=True, plan=PLAN)
    html = tmp_path / "a.html"
    said("show", tmp_path / "a", "--html", html, "--plots", tmp_path / "plots")
    page = open_page(html)
    assert page.error is None
    assert page.plots >= 5
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"phases-0.svg", "phases-0.png", "loss.svg", "memory.png"} <= names
    assert b"proved" not in (tmp_path / "plots" / "loss.svg").read_bytes()
    assert (tmp_path / "plots" / "phases-0.svg").read_text().startswith("<svg")
    assert (tmp_path / "plots" / "phases-0.png").read_bytes()[:4] == b"\x89PNG"
