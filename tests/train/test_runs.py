"""Runs in their folders: their state, their reports, comparing them, and cleaning up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import time
from typing import Any

import pyarrow.parquet
import pytest

import hasten
from hasten.core.errors import DataError, MachineError
from hasten.core.plan import Plan
from hasten.optimizations.metric_reading import MetricReading
from hasten.report.curve import averaged, curve
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.saver import Pace
from hasten.train.records.clean import Leftovers, find_leftovers, remove
from hasten.train.records.compare import compare_runs, held_out_at_same_updates, to_same_loss, training_speed
from hasten.train.records.reports import count_incidents, export_reports, read_reports, skim_reports
from hasten.train.records.runs import find_runs, open_all, open_run, state_of, summary
from hasten.train.run import RunOptions, train
from tests.train.jobs import Plain
from tests.train.runs import as_if, held, trained

DAY_S = 86_400


class Judged(Plain):
    """A job with a best checkpoint."""

    quality = hasten.Quality(metric="loss", direction="min", margin=0.1)


class OtherSeed(Plain):
    seed = 1


def updates(run: Path) -> list[int]:
    return [saved.update for saved in CheckpointFolder(run).all()]


@pytest.mark.parametrize(
    ("parts", "running", "state"),
    [
        ([{"outcome": "finished"}], False, "finished"),
        ([{"outcome": "finished"}], True, "finished"),
        ([{"outcome": "stopped"}, {}], True, "running"),
        ([{"outcome": "stopped"}, {}], False, "killed"),
        ([{}, {"outcome": "failed"}], False, "failed"),
        ([], True, "running"),
        ([], False, "unknown"),
    ],
)
def test_the_state_of_a_run(parts: Any, running: bool, state: str) -> None:
    assert state_of({"parts": parts} if parts else {}, running=running) == state


def test_a_lock_tells_a_running_run_from_a_killed_one(tmp_path: Path) -> None:
    run = as_if(trained(tmp_path / "a", max_updates=2), "killed")
    with held(run):
        assert open_run(run).state == "running"
    assert open_run(run).state == "killed"


def test_asking_whether_it_runs_does_not_disturb_a_run(tmp_path: Path) -> None:
    seen: list[str] = []
    said: list[str] = []
    options = RunOptions(pace=Pace(every=1), say=said.append)
    train(
        Plain(), Plan(), tmp_path, max_updates=6, on_report=lambda _: seen.append(open_run(tmp_path).state), options=options
    )
    assert set(seen) == {"running"}
    assert said == []


@pytest.mark.parametrize("pace", [None, Pace(every=3)])
def test_two_runs_never_share_a_folder(tmp_path: Path, pace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.train.records.lock._PATIENCE_S", 0.05)
    trained(tmp_path, max_updates=2)
    before = (tmp_path / "run.toml").read_bytes()
    with held(tmp_path), pytest.raises(DataError, match="Another run is active"):
        train(Plain(), Plan(), tmp_path, max_updates=2, options=RunOptions(resume=True, pace=pace, say=lambda _: None))
    assert (tmp_path / "run.toml").read_bytes() == before


def test_runs_are_found_below_a_folder_the_newest_first(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "deep/down/new", "middle")):
        run = trained(tmp_path / name, max_updates=1)
        for file in (
            run / "run.toml",
            run / "metrics.jsonl",
            run / "log.txt",
            run / "model.pt",
            run / "checkpoints" / "latest",
        ):
            os.utime(file, (1e9 + (0, 2, 1)[number], 1e9 + (0, 2, 1)[number]))
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / "metrics.jsonl").touch()  # a file of another program
    assert [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)] == ["deep/down/new", "middle", "old"]
    assert find_runs(tmp_path / "old") == [tmp_path / "old"]


def test_folders_without_a_run_are_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        find_runs(tmp_path / "no")
    with pytest.raises(DataError, match=r"contains no runs\. Start one with `hasten run TARGET"):
        open_all(tmp_path)
    with pytest.raises(DataError, match=r"is not a run: it has neither run\.toml nor metrics\.jsonl"):
        open_run(tmp_path)


def test_a_run_of_an_older_version_is_shown_as_far_as_it_tells(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    (run / "run.toml").unlink()
    keep = ("update", "planned", "epoch", "loss", "samples_per_s", "held_out")
    lines = [{key: row[key] for key in keep} for row in read_reports(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = summary(open_run(run), now_s=time())
    assert (found["state"], found["updates"], found["planned"], found["seconds"]) == ("unknown", 12, 12, None)
    assert found["samples_per_s"] == lines[-1]["samples_per_s"]


def test_one_record_that_cannot_be_read_hides_no_other_run(tmp_path: Path) -> None:
    trained(tmp_path / "good", max_updates=1)
    (trained(tmp_path / "bad", max_updates=1) / "run.toml").write_text("torn = ")
    assert {run.path.name: run.state for run in open_all(tmp_path)} == {"good": "finished", "bad": "unreadable"}


def test_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    whole = read_reports(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"update": 13, "held_')
    assert read_reports(run) == whole
    last, held_out = skim_reports(run)
    assert last == whole[-1]
    assert [row["update"] for row in held_out] == [6, 12]


def test_incidents_are_counted_by_kind(tmp_path: Path) -> None:
    run = trained(tmp_path / "a", max_updates=1)
    assert count_incidents(run) == {}
    rows = [{"kind": kind, "update": 3} for kind in ("spike", "memory", "spike")]
    (run / "incidents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "torn')
    assert count_incidents(run) == {"spike": 2, "memory": 1}


def test_a_summary_gives_the_state_of_a_run(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    found = summary(open_run(run), now_s=time())
    last = read_reports(run)[-1]
    assert (found["state"], found["updates"], found["planned"]) == ("finished", 12, 12)
    assert (found["loss"], found["held_out"], found["held_out_update"]) == (last["loss"], last["held_out"], 12)
    assert found["samples_per_s"] == last["samples"] / last["seconds"]
    assert found["checkpoint_bytes"] == sum(
        file.stat().st_size for file in (run / "checkpoints").rglob("*") if file.is_file()
    )
    assert 0 <= found["age_s"] < 600


def test_only_differences_are_listed(tmp_path: Path) -> None:
    plan = Plan(optimizations=(MetricReading(every=3),))
    runs = [open_run(trained(tmp_path / "a")), open_run(trained(tmp_path / "b", OtherSeed(), plan=plan, max_updates=7))]
    found = compare_runs(runs)
    rows = {row["what"]: row["values"] for row in found["differences"]}
    assert rows["seed"] == ["0", "1"]
    assert rows["planned"] == ["12", "7"]
    assert rows["plan: metric_reading"] == [None, "every=3"]
    assert not {"machine", "batch_size", "version of torch", "data"} & set(rows)
    assert [row["update"] for row in found["held_out"]] == [6]
    assert "hasten tune" in found["warnings"][0]
    assert "hasten compare" in found["warnings"][0]
    assert any("seeds differ" in words for words in found["warnings"])
    assert not any("machines differ" in words for words in found["warnings"])


def reports(*rows: tuple[int, float, float, float | None]) -> list[dict[str, Any]]:
    """Return reports of (update, seconds, training loss, held-out loss)."""
    return [
        {
            "update": update, "seconds": seconds, "loss": loss, "samples_per_s": 10.0 * update,
            "held_out": {} if held_out is None else {"loss": held_out},
        }
        for update, seconds, loss, held_out in rows
    ]  # fmt: skip


def test_held_out_results_are_compared_only_at_the_same_update() -> None:
    a, b = reports((5, 1, 0, 0.5), (10, 2, 0, 0.4)), reports((5, 1, 0, 0.6), (8, 2, 0, 0.3))
    assert held_out_at_same_updates([a, b]) == [{"update": 5, "values": [{"loss": 0.5}, {"loss": 0.6}]}]
    assert held_out_at_same_updates([a, []]) == []


def test_the_time_to_a_loss_is_that_of_the_lowest_all_reached() -> None:
    a, b = reports((5, 1, 0, 0.5), (10, 2, 0, 0.2)), reports((5, 3, 0, 0.6), (10, 6, 0, 0.4))
    assert to_same_loss([a, b]) == {"loss": 0.4, "kind": "held-out loss", "seconds": [2, 6], "updates": [10, 10]}


def test_without_held_out_results_the_smoothed_training_loss_is_used() -> None:
    lucky = [4.0, 4.0, 0.1, 4.0, 4.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    a = reports(*((update, float(update), loss, None) for update, loss in enumerate(lucky, 1)))
    b = reports(*((update, 2.0 * update, 2.0, None) for update in range(1, 11)))
    found = to_same_loss([a, b])
    assert found is not None
    assert found["kind"] == "training loss"
    assert found["loss"] == 2.0
    assert found["seconds"] == [10.0, 2.0]  # one lucky batch (0.1) is not "reached"
    assert to_same_loss([a, [{"update": 1, "loss": 1.0}]]) is None  # reports of an older version have no times


def test_the_training_speed_leaves_validation_and_the_start_out() -> None:
    rows = reports((1, 1, 0, None), (2, 2, 0, None), (3, 3, 0, 0.1), (4, 4, 0, None), (5, 5, 0, None))
    assert training_speed(rows) == 40.0  # of 20, 40, 50
    assert training_speed([]) is None


def test_reports_become_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "a")
    count = export_reports(read_reports(run), tmp_path / "a.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert len(rows) == count == len(read_reports(run))
    assert rows[-1]["held_out.loss"] == read_reports(run)[-1]["held_out"]["loss"]
    assert rows[-1]["update"] == 12
    with pytest.raises(DataError, match=r"must end in \.parquet"):
        export_reports(read_reports(run), tmp_path / "a.csv")
    with pytest.raises(DataError, match="has no reports yet"):
        export_reports([], tmp_path / "b.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match="pip install pyarrow"):
        export_reports(read_reports(run), tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()


def leftovers(run: Path, **settings: Any) -> list[Leftovers]:
    return find_leftovers([open_run(run)], now_s=time(), **settings)


def test_a_finished_run_loses_only_its_checkpoints(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    (run / ".metrics.jsonl.x1").write_text("half")  # left by a killed writer
    (run / "notes.md").write_text("mine")
    lasting = {
        name: (run / name).read_bytes() for name in ("run.toml", "metrics.jsonl", "model.pt", "hasten.toml", "log.txt")
    }
    (found,) = leftovers(run)
    assert found.num_bytes == summary(open_run(run), now_s=0)["checkpoint_bytes"] + 4
    assert remove(found)
    assert not (run / "checkpoints").exists()
    assert not (run / ".metrics.jsonl.x1").exists()
    assert all((run / name).read_bytes() == data for name, data in lasting.items())
    assert (run / "notes.md").exists()
    assert leftovers(run) == []


def test_the_best_checkpoint_is_kept_on_request(tmp_path: Path) -> None:
    run = trained(tmp_path / "a", Judged())
    best = CheckpointFolder(run).best()
    assert best is not None
    (found,) = leftovers(run, keep_best=True)
    assert found.stays == f"{best.path.name}: the best"
    assert remove(found)
    assert updates(run) == [best.update]
    still = CheckpointFolder(run).best()
    assert still is not None
    assert still.update == best.update


@pytest.mark.parametrize("outcome", ["killed", "stopped", "failed"])
def test_a_run_that_did_not_finish_can_still_be_resumed(tmp_path: Path, outcome: str) -> None:
    run = as_if(trained(tmp_path / "a"), outcome)
    (found,) = leftovers(run)
    assert "to resume from" in found.stays
    assert remove(found)
    assert updates(run) == [12]
    assert train(Plain(), Plan(), run, options=RunOptions(resume=True, say=lambda _: None)).went_on_from == 12


def test_an_active_run_is_never_touched(tmp_path: Path) -> None:
    run = as_if(trained(tmp_path / "a"), "killed")
    (found,), before = leftovers(run), updates(run)
    with held(run):
        assert leftovers(run, everything=True) == []
        assert not remove(found)  # it was resumed after the list was shown
    assert updates(run) == before


def test_runs_that_were_active_lately_are_left_alone(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    assert find_leftovers([open_run(run)], now_s=time() + 2 * DAY_S, older_than_days=3) == []
    assert len(find_leftovers([open_run(run)], now_s=time() + 4 * DAY_S, older_than_days=3)) == 1


def test_everything_is_only_what_the_run_wrote(tmp_path: Path) -> None:
    for name in ("a", "b"):
        trained(tmp_path / name)
    (tmp_path / "b" / "notes.md").write_text("mine")
    (tmp_path / "a" / "stacks").mkdir(exist_ok=True)
    (tmp_path / "a" / "stacks" / "stacks-1.txt").write_text("here")
    (tmp_path / "a" / "incidents.jsonl").touch()
    for name in ("a", "b"):
        (found,) = leftovers(tmp_path / name, everything=True)
        assert remove(found)
    assert not (tmp_path / "a").exists()
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["notes.md"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    run, elsewhere = trained(tmp_path / "a"), tmp_path / "disk"
    (run / "checkpoints").rename(elsewhere)
    (run / "checkpoints").symlink_to(elsewhere)
    assert leftovers(run) == []
    assert [saved.name for saved in elsewhere.glob("0*")]


def test_a_curve_falls_where_the_values_fall() -> None:
    lines = curve([8.0, 6.0, 4.0, 2.0], width=4, height=4, plain=True)
    assert lines == ["8 #", "  ##", "  ###", "2 ####"]
    assert curve([], width=4) == []
    assert curve([1.0, 1.0], width=4, height=2) == ["1", "1 ▁▁"]
    assert averaged([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]


ENDLESS = """
from pathlib import Path
from tests.train.jobs import Plain
from tests.train.runs import as_if, held, trained
from hasten.core.plan import Plan
from hasten.train.run import RunOptions, train
from hasten.train.checkpoints.saver import Pace

class Endless(Plain):
    epochs = 10**6

pace = {pace}
train(Endless(), Plan(), Path({out!r}), options=RunOptions(pace=pace))
"""


@pytest.mark.slow
@pytest.mark.parametrize("pace", [pytest.param("None", marks=pytest.mark.long), "Pace(every=5)"])
def test_a_run_that_is_killed_was_running_and_is_killed(tmp_path: Path, pace: str) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", ENDLESS.format(pace=pace, out=str(out))])
    try:
        until = time() + 60
        while time() < until and not (out.exists() and read_reports(out)):
            assert process.poll() is None
        assert open_run(out).state == "running"
        assert leftovers(out, everything=True) == []
    finally:
        process.kill()
        process.wait()
    until = time() + 30  # the last checkpoint may still be being written
    while open_run(out).state == "running" and time() < until:
        pass
    found = summary(open_run(out), now_s=time())
    assert found["state"] == "killed"
    assert found["updates"] > 0
    with (out / "metrics.jsonl").open("rb") as file:
        assert json.loads(file.readline())["update"] > 0
