"""Watching runs: what is read of them, the terminal, the server's guard, and the page in a real browser."""

from __future__ import annotations

import http.client
import io
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.core.errors import DataError, MachineError
from hasten.monitor.alerts.deliver import AlertsFile
from hasten.monitor.watch.runs import Watch, describe
from hasten.monitor.watch.server import _listen
from hasten.monitor.watch.text import draw
from hasten.monitor.window import Start
from hasten.monitor.windows_file import WindowsFile
from tests.monitor.browser import open_browser
from tests.monitor.test_alerts import ALERT, window

PLAN = """schema = 1
[optimizations.fused_optimizer]
[proved]
machine = "2 cores"
ratio = 1.6
update_low_s = 0.09
update_high_s = 0.11
"""


def write_run(folder: Path, count: int = 30, *, rank: int = 0, step: int = 0, alert: bool = False, plan: str = "") -> Path:
    """Write the windows of a run."""
    start = Start(run=folder.name, rank=rank, world=2, host="m", step=step, units={"process.memory.private": "By"})
    file = WindowsFile(start, folder)
    for number in range(step // 20, count):
        values = {"training.loss": 2.0 - 0.01 * number, "training.samples": 320.0, "training.step_time": 0.1}
        values["process.memory.private"] = 2.0**30
        file.write(replace(window(number, start=start), values=values))
    file.close()
    if alert:
        AlertsFile(folder=folder)(ALERT, folder.name)
    if plan:
        (folder / "hasten.toml").write_text(plan)
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, one with an alert, one with two ranks."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("jobs/one"), alert=True, plan=PLAN)
    write_run(Path("jobs/two"))
    write_run(Path("jobs/two"), rank=1)
    write_run(Path("jobs/deep/three"))
    return tmp_path


def test_all_runs_and_ranks_below_a_folder_are_found_also_later(runs: Path) -> None:
    watch = Watch([Path("jobs")])
    read = {rank.name: len(windows) for rank, windows in watch.update()}
    assert read == {"jobs/one": 30, "jobs/two": 30, "jobs/two rank 1": 30, "jobs/deep/three": 30}
    write_run(Path("jobs/four"), 5)
    assert {rank.name: len(windows) for rank, windows in watch.update()}["jobs/four"] == 5
    about = {rank.name: describe(rank) for rank in watch.ranks}
    assert about["jobs/one"]["plan"] == ["fused_optimizer"]
    assert about["jobs/one"]["proved"]["ratio"] == 1.6
    assert [alert["rule"] for alert in about["jobs/one"]["firing"]] == ["slower"]
    assert about["jobs/two rank 1"]["rank"] == 1
    assert about["jobs/two"]["step"] == 600
    json.dumps(about, allow_nan=False)


def test_steps_that_a_resumed_run_repeats_are_shown_once(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    watch = Watch([tmp_path])
    watch.update()
    write_run(tmp_path / "run", 40, step=400)
    watch.update()
    (rank,) = watch.ranks
    assert [window.to_step for window in rank.windows] == [20 * (number + 1) for number in range(40)]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    newer = tmp_path / "newer/windows.jsonl"
    newer.parent.mkdir()
    newer.write_text('{"kind": "start", "schema": 99, "run": "x"}\n')
    watch = Watch([tmp_path])
    assert sorted(len(windows) for _, windows in watch.update()) == [0, 30]
    told = {rank.name: describe(rank)["how"] for rank in watch.ranks}
    assert "newer version of Hasten" in told["newer"]


def test_files_are_read_again_only_if_they_have_changed(runs: Path) -> None:
    watch = Watch([Path("jobs/one")])
    watch.update()
    (rank,) = watch.ranks
    reads: list[Path] = []
    for _ in range(3):
        rank.read(reads.append, "alerts.jsonl", "incidents.jsonl")
    assert reads == [Path("jobs/one")]
    (runs / "jobs/one/incidents.jsonl").write_text("{}")
    rank.read(reads.append, "alerts.jsonl", "incidents.jsonl")
    assert len(reads) == 2


def test_a_folder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DataError, match="no-such does not exist"):
        Watch([Path("no-such")])


def test_the_terminal_shows_runs_phases_and_alerts_at_80_columns(runs: Path) -> None:
    watch = Watch([Path("jobs")])
    watch.update()
    console = Console(width=80, file=io.StringIO())
    console.print(draw(watch.ranks, 80))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "jobs/one" in text
    assert "data 10%  forward 90%" in text
    assert "! slower: slow" in text


def test_the_terminal_says_that_there_is_nothing_yet(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(tmp_path), "--once"])
    assert done.exit_code == 0
    assert "No run has written windows yet" in done.stdout


# The server.


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run `hasten watch` for the folder `jobs`, and yield the address that it prints."""
    pytest.importorskip("trackio")
    command = [sys.executable, "-m", "hasten", "watch", "jobs", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if "token=" in line)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with served(runs) as address:
        yield address


def ask(
    address: str, path: str, method: str = "GET", head: Mapping[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage]:
    """Return the status and the head of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    body = "{}" if method == "POST" else None
    connection.request(method, path, body=body, headers={"Content-Type": "application/json", **(head or {})})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.headers


@pytest.mark.slow
def test_the_server_answers_only_reads_with_the_token(address: str) -> None:
    token = parse_qs(urlsplit(address).query)["token"][0]
    status, head = ask(address, f"/hasten/?token={token}")
    assert (status, head["location"]) == (303, "/hasten/")
    assert "HttpOnly" in head["set-cookie"]
    assert "SameSite=strict" in head["set-cookie"]
    own = {"Cookie": head["set-cookie"].split(";")[0]}
    wanted = {
        "/hasten/": 200, "/hasten/runs.json": 200, "/": 200, "/nothing": 404, "/hasten/../../etc/passwd": 404,
        "/hasten/%2e%2e/data": 404, "/file?path=/etc/passwd": 404,
    }  # fmt: skip
    for path, expected in wanted.items():
        assert ask(address, path, head=own)[0] == expected, path
        assert ask(address, path)[0] == 403, path
    assert ask(address, f"/hasten/?token={token[:-1]}")[0] == 403
    assert ask(address, "/hasten/", head={**own, "Host": "elsewhere.example"})[0] == 403
    assert ask(address, "/api/get_all_projects", "POST", own)[0] == 200
    for name in ("delete_run", "bulk_log", "upload", "force_sync", "query_project"):
        assert ask(address, f"/api/{name}", "POST", own)[0] == 404, name


@pytest.mark.slow
def test_the_page_draws_runs_in_a_browser_and_follows_keys_and_new_windows(address: str, runs: Path) -> None:
    with open_browser() as tab:
        tab.open(address)
        tab.wait("document.body.dataset.drawn")
        assert tab.value("document.querySelectorAll('.run').length") == 4
        assert tab.value("document.querySelectorAll('#phases .js-plotly-plot').length") == 1
        tab.press("/", *"one", "Escape", "j", "Enter")
        tab.wait("document.body.dataset.drawn === 'jobs/one'")
        assert "slow" in tab.value("document.querySelector('#alerts .alert').textContent")
        assert tab.value("document.getElementById('step').layout.shapes.some((shape) => shape.y0 === 0.09)")
        assert "fused_optimizer" in tab.value("document.getElementById('evidence').textContent")
        write_run(Path("jobs/one"), 60, step=600)
        tab.wait("Math.max(...document.getElementById('loss').data[0].x) === 1200")
        tab.value("document.getElementById('filter').value = ''")
        tab.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
        tab.press("j", " ")
        tab.wait("document.body.dataset.drawn.includes(' ')")
        assert tab.value("document.getElementById('step').data.length") == 2
        tab.press("d")
        assert tab.value("document.documentElement.dataset.theme") in ("dark", "light")
        tab.open(address, width=390, height=800)
        tab.wait("document.body.dataset.drawn")
        assert tab.value("document.documentElement.scrollWidth") <= 390
        assert tab.errors == []


@pytest.mark.long
def test_a_million_points_of_fifty_runs_are_drawn_within_seconds(tmp_path: Path) -> None:
    start = Start(run="run", host="m")
    names = [f"metric.{number}" for number in range(18)]
    for run in range(50):
        file = WindowsFile(start, tmp_path / f"jobs/run-{run:02}")
        for number in range(1000):
            values: dict[str, Any] = {"training.loss": 2.0, "training.step_time": 0.1, **dict.fromkeys(names, float(number))}
            file.write(window(number, values=values))
        file.close()
    with served(tmp_path) as address, open_browser() as tab:
        tab.open(address)
        tab.wait("document.body.dataset.drawn", 20.0)
        assert tab.value("document.querySelectorAll('.run').length") == 50
        assert tab.value("document.getElementById('loss').data[0].x.length") == 1000
        assert tab.errors == []


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MachineError, match="--port"):
            _listen(taken.getsockname()[1])
