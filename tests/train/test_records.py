"""The record, the log and the reports that a run writes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import hasten
from hasten.core.errors import CorruptError, DataError, LossError
from hasten.core.plan import Plan
from hasten.core.provenance import repository_of
from hasten.optimizations.metric_reading import MetricReading
from hasten.train.build import build
from hasten.train.checkpoints.saver import Pace
from hasten.train.clock import PHASES, SampledClock
from hasten.train.loop import Loop
from hasten.train.periodic import Report
from hasten.train.records import log as log_module
from hasten.train.records.log import RunLog, impersonal
from hasten.train.records.record import Origin, how_it_ended, read_record, to_toml
from hasten.train.run import RunOptions, train
from tests.train.jobs import CPU, Plain


def quiet(_: str) -> None:
    """Ignore a message."""


def parts(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_record(out)["parts"]
    return found


def test_a_run_leaves_a_record_of_everything_that_determines_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    origin = Origin(target="my_job.py:Plain", arguments=("my_job.py:Plain", "--updates", "7"))
    train(Plain(), Plan(optimizations=(MetricReading(every=2),)), out, max_updates=7, origin=origin)
    record = tomllib.loads((out / "run.toml").read_text())
    assert record["target"] == "my_job.py:Plain"
    assert (out / record["plan_file"]).exists()
    (part,) = record["parts"]
    assert part["outcome"] == "finished"
    assert (part["from_update"], part["updates"], part["planned"]) == (0, 7, 7)
    assert (part["plan"], part["seed"], part["batch_size"], part["ranks"]) == (["metric_reading"], 0, 4, 1)
    assert part["arguments"] == ["my_job.py:Plain", "--updates", "7"]
    assert part["versions"]["hasten"] == hasten.__version__
    assert part["versions"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert len(part["machine_fingerprint"]) == 12
    started, ended = (datetime.fromisoformat(part[name]) for name in ("started", "ended"))
    assert started.tzinfo is not None
    assert started <= ended


def test_a_resumed_run_has_a_part_for_each_start(tmp_path: Path) -> None:
    def ask(report: Report) -> None:
        if report.held_out:
            os.kill(os.getpid(), signal.SIGTERM)

    train(Plain(), Plan(), tmp_path, on_report=ask, options=RunOptions(pace=Pace(every=100), say=quiet))
    first = parts(tmp_path)
    assert [(part["outcome"], part["signal"], part["updates"]) for part in first] == [("stopped", "SIGTERM", 7)]
    train(Plain(), Plan(), tmp_path, options=RunOptions(resume=True, pace=Pace(every=100), say=quiet))
    found = parts(tmp_path)
    assert found[0] == first[0]
    outcomes = [(part["from_update"], part["updates"], part["outcome"]) for part in found]
    assert outcomes == [(0, 7, "stopped"), (7, 12, "finished")]
    assert found[0]["code"] == found[1]["code"] != ""


def test_a_new_run_in_the_same_folder_starts_a_new_record(tmp_path: Path) -> None:
    for _ in range(2):
        train(Plain(), Plan(), tmp_path, max_updates=2)
    assert len(parts(tmp_path)) == 1
    assert (tmp_path / "log.txt").read_text().count("started from update 0 of 2") == 1


def test_a_run_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    class Torn(Plain):
        def loss(self, model: Any, batch: Any) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(model(x), y) * float("nan")

    with pytest.raises(LossError):
        train(Torn(), Plan(), tmp_path)
    (part,) = parts(tmp_path)
    assert part["outcome"] == "failed"
    assert part["error"].startswith("LossError: The first loss is nan.")
    assert "\n" not in part["error"]
    assert "failed at update 1 of 12: LossError" in (tmp_path / "log.txt").read_text()


def test_while_it_runs_the_record_is_open(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    train(Plain(), Plan(), tmp_path, on_report=lambda _: seen.extend(parts(tmp_path)))
    assert seen
    assert all("outcome" not in part and "ended" not in part for part in seen)


@pytest.mark.parametrize(
    ("error", "name", "want"),
    [
        (None, None, {"outcome": "finished"}),
        (None, "SIGUSR1", {"outcome": "stopped", "signal": "SIGUSR1"}),
        (KeyboardInterrupt(), None, {"outcome": "stopped", "signal": "SIGINT"}),
        (ValueError("first\nsecond"), None, {"outcome": "failed", "error": "ValueError: first"}),
        (MemoryError(), "SIGTERM", {"outcome": "failed", "error": "MemoryError"}),
    ],
)
def test_how_a_run_ended(error: Any, name: Any, want: Any) -> None:
    assert how_it_ended(error, name) == want


def test_a_record_with_any_text_is_equal_after_reading(tmp_path: Path) -> None:
    part = {
        "started": "2026-01-01",
        "plan": ["a"],
        "arguments": ['say "ü"', "a\\b", "line\nline"],
        "versions": {"odd name": "1"},
    }
    (tmp_path / "run.toml").write_text(to_toml('odd "target"', [part, part]))
    read = read_record(tmp_path)
    assert read["target"] == 'odd "target"'
    assert read["parts"] == [part, part]


def test_a_record_that_cannot_be_read_is_named_and_stops_no_training(tmp_path: Path) -> None:
    assert read_record(tmp_path) == {}
    (tmp_path / "run.toml").write_text("schema = 1\nparts = 3\n")
    with pytest.raises(CorruptError, match=r"has no \[\[parts\]\]"):
        read_record(tmp_path)
    (tmp_path / "run.toml").write_text("schema = 99\n")
    with pytest.raises(DataError, match="newer version"):
        read_record(tmp_path)
    (tmp_path / "run.toml").write_text("torn = ")
    with pytest.raises(CorruptError, match="cannot be read"):
        read_record(tmp_path)
    said: list[str] = []
    train(Plain(), Plan(), tmp_path, max_updates=2, options=RunOptions(resume=True, say=said.append))
    assert len(parts(tmp_path)) == 1
    assert (tmp_path / "run.toml.unread").read_text() == "torn = "
    assert any("renamed to run.toml.unread" in message for message in said)


def test_nothing_personal_is_in_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "ada"
    (home / "code").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.chdir(home / "code")
    assert impersonal(f"{home}/code/job.py:J") == "job.py:J"
    assert impersonal(f"--out={home}/runs/a") == "--out=~/runs/a"
    assert impersonal("/data/ada/set and /home/bob/x") == "/data/<user>/set and ~/x"
    assert impersonal("/data/adapters") == "/data/adapters"
    out = home / "runs" / "a"
    origin = Origin(target=f"{home}/code/job.py:J", arguments=(f"{home}/code/job.py:J", "--out", str(out)))
    train(Plain(), Plan(), out, max_updates=1, origin=origin)
    for name in ("run.toml", "log.txt"):
        text = (out / name).read_text()
        assert str(home) not in text
        assert not re.search(r"\bada\b", text)
        assert "hunter2" not in text


def test_the_commit_is_found_without_touching_the_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, "-C", tmp_path, *words], check=True, capture_output=True)

    assert repository_of(tmp_path / "nowhere") == {}
    git("init", "-q")
    assert repository_of(tmp_path) == {}  # no commit yet
    (tmp_path / "job.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    found = repository_of(tmp_path)
    assert found["changed"] is False
    (tmp_path / "hasten-run").mkdir()
    (tmp_path / "hasten-run" / "metrics.jsonl").touch()
    assert repository_of(tmp_path) == found  # a run's own folder does not count as a change
    index = (tmp_path / ".git" / "index").read_bytes()
    os.utime(tmp_path / "job.py", (2e9, 2e9))  # git would write the new time to its index
    assert repository_of(tmp_path) == found
    assert (tmp_path / ".git" / "index").read_bytes() == index
    (tmp_path / "job.py").write_text("a = 22\n")
    assert repository_of(tmp_path) == {**found, "changed": True}


def test_without_git_there_is_no_commit_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository_of(Path.cwd()) == {}


def test_messages_are_in_the_log_with_their_times(tmp_path: Path) -> None:
    said: list[str] = []
    log = RunLog(said.append)
    log("before the file")
    log.note("only written")
    log.open(tmp_path / "log.txt", append=False)
    log("after")
    log.close()
    log("too late")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == ["before the file", "only written", "after"]
    assert all(datetime.fromisoformat(line.split("  ", 1)[0]).tzinfo for line in lines)
    assert said == ["before the file", "after", "too late"]


def test_a_log_that_cannot_be_written_is_reported_once_and_stops_nothing() -> None:
    said: list[str] = []
    log = RunLog(said.append)
    log.open(Path("/no/such/folder/log.txt"), append=False)
    log("on we go")
    log.close()
    assert said == [
        f"{log_module.LOG} cannot be written, so further messages are not logged: {os.strerror(errno.ENOENT)}.",
        "on we go",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_on_a_full_disk_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    log = RunLog(said.append)
    log.open(Path("/dev/full"), append=False)
    for _ in range(3):
        log.note("x")
    log.close()
    assert len(said) == 1


def test_held_out_results_are_in_the_log(tmp_path: Path) -> None:
    train(Plain(), Plan(), tmp_path)
    text = (tmp_path / "log.txt").read_text()
    assert len(re.findall(r"epoch \d, update (6|12): held-out loss \d", text)) == 2
    assert "finished at update 12 of 12" in text


def test_a_sampled_clock_times_all_updates_if_that_is_cheap_and_few_if_it_is_expensive() -> None:
    def timed(cost_s: float) -> SampledClock:
        clock = SampledClock(CPU, cost_s=cost_s)
        loop = Loop(build(Plain(), device=CPU), clock=clock)
        loop.run(40)
        clock.take_shares()
        return clock

    cheap, expensive = timed(0.0), timed(1e6)
    assert (cheap.gap, cheap.updates) == (1, 38)  # all except the first two
    assert expensive.gap > 1000
    assert expensive.updates <= 2


def test_the_shares_are_those_of_the_phases_and_are_given_once() -> None:
    clock = SampledClock(CPU, cost_s=0.0)
    loop = Loop(build(Plain(), device=CPU), clock=clock)
    loop.run(6)
    shares = clock.take_shares()
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)
    assert {"data", "forward", "backward", "optimizer"} <= set(shares) <= set(PHASES)
    assert clock.take_shares() == {}


def test_reports_tell_samples_seconds_memory_and_phases(tmp_path: Path) -> None:
    told: list[Report] = []
    train(Plain(), Plan(), tmp_path, on_report=told.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [vars(report) for report in told]
    assert told[-1].samples == 44
    assert told[-1].memory_bytes > 2**20
    assert told[-1].device_bytes is None
    assert any(report.phases.get("forward", 0.0) > 0 for report in told)
    seconds = [report.seconds for report in told]
    assert seconds == sorted(seconds)


def test_the_seconds_of_a_resumed_run_continue(tmp_path: Path) -> None:
    train(Plain(), Plan(), tmp_path, max_updates=6, options=RunOptions(pace=Pace(every=100), say=quiet))
    path = tmp_path / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["seconds"] = 1000.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    train(Plain(), Plan(), tmp_path, options=RunOptions(resume=True, pace=Pace(every=100), say=quiet))
    assert 1000.0 <= json.loads(path.read_text().splitlines()[-1])["seconds"] < 1100.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_shares_come_from_its_clock_and_its_memory_is_reported(tmp_path: Path) -> None:
    told: list[Report] = []
    train(Plain(), Plan(), tmp_path, on_report=told.append)
    assert told[-1].device_bytes is not None
    assert told[-1].device_bytes > 0
    clock = SampledClock(torch.device("cuda"), cost_s=0.0)
    loop = Loop(build(Plain(), device=torch.device("cuda")), clock=clock)
    loop.run(6)
    torch.cuda.synchronize()
    assert sum(clock.take_shares().values()) == pytest.approx(1.0, abs=1e-3)
