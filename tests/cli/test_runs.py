"""`hasten runs`, and what `hasten run` prints while it trains."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.cli.progress import RecentSpeed, TrainingProgress, status_words
from hasten.core.errors import DataError, HastenError
from hasten.core.plan import Plan
from hasten.optimizations.metric_reading import MetricReading
from hasten.train.periodic import Report
from tests.cli.called import printed
from tests.train.jobs import Plain
from tests.train.runs import as_if, trained
from tests.tune.jobs import write_job


def said(*words: object) -> str:
    """Return what a verb prints, or raise its error."""
    done = CliRunner().invoke(app, ["runs", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def told(*words: object) -> Any:
    """Return what a verb prints as JSON."""
    return json.loads(said(*words, "--json"))


def test_list_names_every_run_with_its_state(tmp_path: Path) -> None:
    trained(tmp_path / "good")
    as_if(trained(tmp_path / "bad", max_updates=3), "killed")
    rows = {Path(row["run"]).name: row for row in told("list", tmp_path)}
    assert {name: row["state"] for name, row in rows.items()} == {"good": "finished", "bad": "killed"}
    assert (rows["good"]["updates"], rows["bad"]["updates"], rows["bad"]["planned"]) == (12, 3, 3)
    for width in (80, 120):
        with printed(width) as paper:
            said("list", tmp_path)
        text = paper.getvalue()
        assert max(map(len, text.splitlines())) <= width
        words = text.split()
        assert {"12/12", "good", "finished", "killed", "samples/s"} <= set(words)
    with pytest.raises(DataError, match="contains no runs"):
        said("list", tmp_path / "good" / "checkpoints")


def test_show_has_all_of_a_run_on_one_page(tmp_path: Path) -> None:
    run = trained(tmp_path / "a", plan=Plan(optimizations=(MetricReading(every=2),)))
    page = told("show", run)
    assert [row["update"] for row in page["held_out_by_epoch"]] == [6, 12]
    assert page["record"]["parts"][0]["outcome"] == "finished"
    assert page["plan"] == {"metric_reading": {"every": 2}}
    assert page["checkpoints"][-1]["update"] == 12
    text = " ".join(said("show", run).split())
    for words in (
        "finished at update 12 of 12",
        "metric_reading (every=2)",
        "seed 0",
        "held-out",
        "checkpoints",
        "versions hasten",
    ):
        assert words in text
    (run / "run.toml").unlink()
    assert "The run has no record (run.toml)" in said("show", run)


def test_compare_puts_runs_side_by_side_and_claims_nothing(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "one"), trained(tmp_path / "two", plan=Plan(optimizations=(MetricReading(every=2),)))
    found = told("compare", one, two)
    assert [row["what"] for row in found["differences"]] == ["plan: metric_reading"]
    assert [row["update"] for row in found["held_out"]] == [6, 12]
    text = " ".join(said("compare", one, two).split())
    assert "does not prove" in text
    assert "hasten tune" in text
    assert not re.search(r"\d\.\d+x", text)  # no ratio is claimed
    with pytest.raises(HastenError, match="two or more runs"):
        said("compare", one)


def test_export_writes_parquet(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    assert f"reports to {tmp_path / 'a.parquet'}" in said("export", run, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes()[:4] == b"PAR1"


def test_clean_shows_and_removes_only_when_told_to(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    assert "Give --yes" in said("clean", tmp_path)
    assert (run / "checkpoints").exists()
    (row,) = told("clean", tmp_path)
    assert not row["removed"]
    assert (run / "checkpoints").exists()
    (row,) = told("clean", tmp_path, "--yes")
    assert row["removed"]
    assert not (run / "checkpoints").exists()
    assert (run / "model.pt").exists()
    assert "nothing to remove" in said("clean", tmp_path, "--yes")
    assert "Removed" in said("clean", tmp_path, "--yes", "--everything")
    assert not run.exists()


@pytest.mark.parametrize(("answer", "gone"), [("n\n", False), ("y\n", True)])
def test_clean_asks_on_a_terminal(tmp_path: Path, answer: str, gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "a")
    monkeypatch.setattr("hasten.cli.runs._has_terminal", lambda: True)
    done = CliRunner().invoke(app, ["runs", "clean", str(tmp_path)], input=answer)
    assert done.exit_code == 0, done.output
    assert "of 1 run?" in done.output
    assert (run / "checkpoints").exists() != gone


def report(update: int, seconds: float, **more: Any) -> Report:
    given = {"planned": 100, "epoch": 1, "loss": 0.5, "samples_per_s": 1234.0, "memory_bytes": 2**30, **more}
    return Report(update=update, seconds=seconds, **given)


def after(*reports: Report) -> RecentSpeed:
    lately = RecentSpeed()
    for one in reports:
        lately.add(one)
    return lately


def test_the_pace_is_that_of_the_last_minute() -> None:
    assert after(report(10, 100.0)).left_s is None
    assert after(report(10, 100.0)).samples_per_s == 1234.0
    assert after(report(10, 100.0), report(20, 110.0)).left_s == 80.0
    fast = [report(update, float(update), samples=8 * update) for update in range(30)]
    slow = [report(30 + late, 30.0 + 10.0 * late, samples=8 * (30 + late)) for late in range(20)]
    lately = after(*fast, *slow)
    assert lately.left_s == pytest.approx(10.0 * (100 - 49))  # ten times slower, and that is what counts now
    assert lately.samples_per_s == pytest.approx(0.8)
    went_back = after(report(50, 5.0, samples=400), report(40, 6.0, samples=320))
    assert went_back.left_s is None
    assert went_back.samples_per_s == 1234.0


def test_after_a_resume_the_updates_done_before_are_no_speed() -> None:
    assert after(report(50, 500.0), report(60, 510.0)).left_s == 40.0


def test_status_words() -> None:
    words = status_words(report(1, 1.0, device_bytes=2**31), {"forward": 0.3, "backward": 0.6, "transfer": 0.001}, 1234.0)
    assert words == "loss 0.5000  1,234 samples/s  1.0 GiB  GPU 2.0 GiB  backward 60 %  forward 30 %"


def test_without_a_terminal_a_line_comes_now_and_then_and_each_epoch() -> None:
    now = [0.0]
    out = io.StringIO()
    with TrainingProgress(Console(file=out, width=200), clock=lambda: now[0]) as progress:
        for second in range(35):
            now[0] = float(second)
            progress.on_report(report(second, float(second), held_out={"loss": 0.25} if second == 7 else {}))
        progress.say("something [odd]")
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "epoch 1: held-out loss 0.2500",
        "update 10 of 100, epoch 1",
        "update 20 of 100, epoch 1",
        "update 30 of 100, epoch 1",
        "hasten: something [odd]",
    ]
    assert lines[2].endswith("80 s left")


def test_on_a_terminal_it_is_drawn_at_most_once_a_second() -> None:
    now = [0.0]
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with TrainingProgress(console, clock=lambda: now[0]) as progress:
        before = len(out.getvalue())
        for tenth in range(9):
            now[0] = tenth / 10
            progress.on_report(report(tenth, now[0]))
        assert len(out.getvalue()) == before
        now[0] = 1.0
        progress.on_report(report(10, 1.0, phases={"forward": 0.7}))
        drawn = out.getvalue()[before:]
    assert "10/100" in drawn
    assert "forward 70 %" in drawn


def test_a_terminal_that_is_slow_is_drawn_on_less_often() -> None:
    now = [0.0]

    class Slow(io.StringIO):
        def flush(self) -> None:
            now[0] += 0.0625

    out = Slow()
    with TrainingProgress(Console(file=out, force_terminal=True, width=100), clock=lambda: now[0]) as progress:
        drawn = []
        for second in range(1, 90):
            now[0] = float(second)
            before = len(out.getvalue())
            progress.on_report(report(second, now[0]))
            drawn += [second] if len(out.getvalue()) > before else []
    assert drawn == [1, 33, 65]  # a sixteenth of a second is 0.2 % of 31 seconds


def test_a_silent_rank_shows_nothing() -> None:
    out = io.StringIO()
    with TrainingProgress(Console(file=out, force_terminal=True), silent=True, clock=lambda: 100.0) as progress:
        progress.on_report(report(10, 1.0, held_out={"loss": 1.0}))
    assert out.getvalue() == ""


SLOW = """
class J(Good):
    epochs = 10**6
    def loss(self, model, batch):
        time.sleep(0.005)
        return super().loss(model, batch)
"""


def hasten(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hasten", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=cwd)


@pytest.mark.long
@pytest.mark.slow
def test_a_real_run_is_running_then_killed_then_taken_up_and_finished(tmp_path: Path) -> None:
    target = write_job(tmp_path, SLOW).removeprefix(f"{tmp_path}/")
    command = [sys.executable, "-m", "hasten", "run", target, "--out", "a", "--updates", "150", "--checkpoint-every", "10"]

    def state() -> str:
        return str(told("list", tmp_path)[0]["state"])

    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while not list((tmp_path / "a").glob("checkpoints/*/manifest.json")) and time.monotonic() < until:
            time.sleep(0.05)
        assert state() == "running"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    until = time.monotonic() + 30
    while state() == "running" and time.monotonic() < until:  # its last checkpoint is on its way to the disk
        time.sleep(0.05)
    assert state() == "killed"
    done = hasten(*command[3:], "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    page = told("show", tmp_path / "a")
    assert (page["state"], page["updates"]) == ("finished", 150)
    first, second = page["record"]["parts"]
    assert "outcome" not in first
    assert second["from_update"] > 0
    assert second["arguments"] == [*command[4:], "--resume"]
    assert page["record"]["target"] == target
    assert "killed" in said("show", tmp_path / "a")
    log = (tmp_path / "a" / "log.txt").read_text()
    assert log.count("started from update") == 2
    assert "finished at update 150 of 150" in log


def test_the_run_that_is_shown_is_the_run_that_was_trained(tmp_path: Path) -> None:
    trained(tmp_path / "a", Plain())
    assert told("show", tmp_path / "a")["record"]["target"] == "tests.train.jobs:Plain"
