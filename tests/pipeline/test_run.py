"""Pipelines in real processes: nothing runs twice, whatever is killed; gates stop what follows; merges fall back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hasten.pipeline.control import State, history, state_of
from hasten.pipeline.description import Pipeline, read_pipeline
from hasten.pipeline.engine import open_instance
from hasten.pipeline.folder import out_of
from tests.cli.called import called, printed
from tests.pipeline.described import command, described

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TRAIN = """\
[stages.train]
job = "stages.py:Stage"
needs = ["data"]
options = ["--checkpoint-every", "2"]
env = { EPOCHS = 3, PAUSE = "0.05" }
memory = "1 GiB"
"""


@pytest.fixture(autouse=True)
def _leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HASTEN_LEASES", str(tmp_path / "leases"))
    yield
    for path in tmp_path.glob("*/hasten-pipeline/stages/*/now.json"):
        pid = json.loads(path.read_text()).get("pid")
        if pid and Path(f"/proc/{pid}/cmdline").exists() and b"hasten.pipeline" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def start(pipeline: Pipeline, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hasten", "pipeline", "run", str(pipeline.root), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(pipeline: Pipeline, *arguments: str) -> subprocess.CompletedProcess[str]:
    with start(pipeline, *arguments) as process:
        out, errors = process.communicate(timeout=200)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def until(pipeline: Pipeline, ready: Callable[[State], bool]) -> State:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = state_of(pipeline)
        if ready(state):
            return state
        time.sleep(0.1)
    raise AssertionError({name: (state.words(name), view.now) for name, view in state.views.items()})


def count(pipeline: Pipeline, name: str) -> int:
    return len((pipeline.root / f"{name}.count").read_text())


def weights(pipeline: Pipeline, name: str = "train") -> bytes:
    return (pipeline.work / "stages" / name / "latest" / "model.pt").read_bytes()


def until_trained(pipeline: Pipeline) -> int:
    """Wait until the job has written a checkpoint. Returns the process of its stage."""
    state = until(pipeline, lambda state: state.views["train"].running and bool(state.views["train"].key))
    out = out_of(pipeline, "train", state.views["train"].key)
    now = until(pipeline, lambda _: any(out.glob("checkpoints/*/*"))).views["train"].now
    return int(now["pid"])


def test_unchanged_stages_are_not_run_again_and_changes_are_named(tmp_path: Path) -> None:
    text = command("a") + command("b", needs="a") + command("c", needs="b")
    pipeline = described(tmp_path / "p", text)
    done = run(pipeline)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [count(pipeline, name) for name in "abc"] == [1, 1, 1]
    assert "Nothing to run: every stage is unchanged." in run(pipeline).stdout
    (pipeline.root / "source.txt").write_text("hello\n\n")  # stages strip it, so what they give is the same
    explained = called("pipeline", "explain", str(pipeline.root)).stdout
    assert "data source.txt changed" in explained
    assert run(pipeline).returncode == 0
    assert [count(pipeline, name) for name in "abc"] == [2, 2, 2], "each of them reads the source"
    changed = described(tmp_path / "p", text.replace('COUNT = "c.count"', 'COUNT = "c.count", MORE = "1"'))
    assert state_of(changed).views["c"].why == "setting env.MORE is new"
    (run_seconds,) = {run["complete"] for run in history(pipeline)}
    assert run_seconds


@pytest.mark.long
def test_a_gate_stops_what_follows_until_a_person_overrides_it(tmp_path: Path) -> None:
    evaluate = """\
[stages.check]
evaluate = ["python", "-c", "import sys; open(sys.argv[1] + '/metrics.json', 'w').write('{}')", "{out}"]
needs = ["a"]
cores = 1
memory = "100 MiB"
gates.good = { metric = "good", threshold = 0.5 }
"""
    pipeline = described(tmp_path / "p", command("a") + evaluate + command("b", needs="check"))
    done = run(pipeline)
    assert done.returncode == 1
    assert "good, all: not passed, it was not measured" in done.stderr
    assert "--override check.good --reason TEXT" in done.stderr
    assert not (pipeline.root / "b.count").exists()
    assert json.loads(called("pipeline", "status", str(pipeline.root), "--json").stdout)[2]["state"] == "blocked"
    assert run(pipeline, "--override", "check.good", "--reason", "a first trial").returncode == 0
    assert (count(pipeline, "a"), count(pipeline, "b")) == (1, 1)
    entry = json.loads((pipeline.work / "audit.jsonl").read_text())
    assert entry["details"]["reason"] == "a first trial"


@pytest.mark.long
def test_a_failed_stage_is_retried_and_its_last_line_is_shown(tmp_path: Path) -> None:
    fails = command("a", "retries = 1").replace('"counted.py"', '"-c", "print(1); raise SystemExit(\'no such corpus\')"')
    pipeline = described(tmp_path / "p", fails + command("b", needs="a"))
    done = run(pipeline)
    assert done.returncode == 1
    assert "stage a exited with 1: no such corpus" in done.stderr
    assert (pipeline.work / "logs" / "a.log").read_text().count("no such corpus\n") == 2
    assert not (pipeline.root / "b.count").exists()


@pytest.mark.long
def test_a_command_that_starts_again_finds_nothing_that_it_gave_before(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.mkdir(sys.argv[1] + '/data'); open('runs', 'a').write('x'); sys.exit(open('runs').read() == 'x')"
    )
    stage = f"""\
[stages.a]
command = ["python", "-c", {json.dumps(code)}, "{{out}}"]
gives = ["data"]
cores = 1
memory = "100 MiB"
retries = 1
"""
    pipeline = described(tmp_path / "p", stage)
    done = run(pipeline)
    assert done.returncode == 0, done.stderr
    assert (pipeline.root / "runs").read_text() == "xx"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Weights of an undisturbed run."""
    pipeline = described(tmp_path_factory.mktemp("whole"), command("data") + TRAIN)
    assert run(pipeline).returncode == 0
    return weights(pipeline)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["stage", "worker", "step", "engine", "command", "everything"])
def test_whatever_is_killed_the_run_ends_with_the_same_weights(tmp_path: Path, whole: bytes, victim: str) -> None:
    pipeline = described(tmp_path / "p", command("data") + TRAIN)
    with start(pipeline) as first:
        worker = psutil.Process(until_trained(pipeline))
        engine = json.loads((pipeline.work / "engine.json").read_text())["pid"]
        found = {
            "stage": [child.pid for child in worker.children()], "worker": [worker.pid], "step": [worker.ppid()],
            "engine": [engine], "command": [first.pid],
            "everything": [first.pid, *(child.pid for child in psutil.Process(first.pid).children(recursive=True))],
        }[victim]  # fmt: skip
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        first.communicate(timeout=200)
    done = run(pipeline)
    assert done.returncode == 0, done.stdout + done.stderr
    assert weights(pipeline) == whole
    assert count(pipeline, "data") == 1
    log = (pipeline.work / "logs" / "train.log").read_text()
    if victim in ("stage", "worker", "everything"):
        assert "Resumed from update" in log
    else:
        assert log.count("--- ") == 1, "the stage outlived what was killed, and did not run twice"


@pytest.mark.long
def test_ctrl_c_saves_and_resume_continues(tmp_path: Path) -> None:
    pipeline = described(tmp_path / "p", command("data") + TRAIN)
    with start(pipeline) as first:
        until_trained(pipeline)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=100)
    assert first.returncode == 130
    state = state_of(pipeline)
    assert state.words("train") == "stopped"
    assert not state.running
    done = called("pipeline", "resume", str(pipeline.root))
    assert done.returncode == 0, done.stderr
    assert "Resumed from update" in (pipeline.work / "logs" / "train.log").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("within", "form"), [(10.0, "merged"), (0.0, "sequential")])
def test_a_merge_that_fails_its_gates_falls_back_to_the_sequential_form(tmp_path: Path, within: float, form: str) -> None:
    branch = """\
[stages.{name}]
job = "stages.py:Stage"
after = "base"
cores = 1
memory = "1 GiB"
env = {{ START = "{{start}}/model.pt", SEED = {seed} }}
"""
    text = (
        '[stages.base]\njob = "stages.py:Stage"\ncores = 1\nmemory = "1 GiB"\n'
        + branch.format(name="one", seed=1)
        + branch.format(name="two", seed=2)
        + f"""\
[stages.joined]
merge = ["one", "two"]
judge = ["python", "judge.py", "{{merged}}", "{{out}}"]
cores = 1
memory = "1 GiB"
gates.error = {{ metric = "error", at_most = true, exact = true, within = {within} }}
"""
    )
    pipeline = described(tmp_path / "p", text)
    done = run(pipeline)
    state = state_of(pipeline)
    record = state.views["joined"].done
    assert record["form"] == form, (record, done.stdout, done.stderr)
    if form == "sequential":
        sequential = out_of(pipeline, "two_after_one", "latest") / "model.pt"
        assert weights(pipeline, "joined") == sequential.read_bytes()
        assert "fell back to the sequential form" in done.stdout
        assert "not passed" in record["gates"][0]
        assert done.returncode == 0


@pytest.mark.long
def test_damaged_records_of_dagster_are_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    pipeline = described(tmp_path / "p", command("a"))
    assert run(pipeline).returncode == 0
    for path in (pipeline.work / "dagster" / "history").glob("*.db"):
        path.write_bytes(b"damaged" * 1000)
    more = described(tmp_path / "p", command("a") + command("b", needs="a"))
    done = run(more)
    assert done.returncode == 1
    assert "Move it away and run again" in done.stderr
    (more.work / "dagster").rename(tmp_path / "away")
    assert run(more).returncode == 0
    assert (count(more, "a"), count(more, "b")) == (1, 1)


def test_lines_fit_eighty_columns(tmp_path: Path) -> None:
    pipeline = described(tmp_path / "p", command("a") + command("a_name_that_is_far_too_long_for_a_column", needs="a"))
    for verb in ("status", "graph", "explain"):
        with printed(80) as paper:
            done = called("pipeline", verb, str(pipeline.root))
        assert done.returncode == 0, done.stderr
        assert max(map(len, paper.getvalue().splitlines())) <= 80


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    assert "There is no" in called("pipeline", "run", str(tmp_path)).stderr
    pipeline = described(tmp_path / "p", command("a"))
    assert "nothing can be resumed" in called("pipeline", "resume", str(pipeline.root)).stderr
    assert "has no stage 'b'" in called("pipeline", "run", str(pipeline.root), "--override", "b.c", "--reason", "x").stderr
    assert (
        "decided nothing yet" in called("pipeline", "run", str(pipeline.root), "--override", "a.c", "--reason", "x").stderr
    )
    assert "Give both" in called("pipeline", "run", str(pipeline.root), "--reason", "x").stderr
    assert read_pipeline(pipeline.path) == pipeline


def test_dagster_sends_nothing(tmp_path: Path) -> None:
    pipeline = described(tmp_path / "p", command("a"))
    with open_instance(pipeline, alone=True) as instance:
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
        assert instance.run_storage.get_run_ids() == []


@pytest.mark.long
def test_the_pages_show_the_stages_to_this_machine_only(tmp_path: Path) -> None:
    pipeline = described(tmp_path / "p", command("a") + command("b", needs="a"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "hasten", "pipeline", "ui", str(pipeline.root), "--port", str(port)]
    question = json.dumps({"query": "{assetNodes{assetKey{path}}}"}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/graphql", question, {"content-type": "application/json"})
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            deadline, answer = time.monotonic() + 90, b""
            while not answer and time.monotonic() < deadline:
                try:
                    answer = urllib.request.urlopen(asked, timeout=60).read()  # noqa: S310 - as above
                except OSError:
                    time.sleep(0.5)
            listening = {item.laddr.ip for item in psutil.Process(process.pid).net_connections() if item.status == "LISTEN"}
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert {node["assetKey"]["path"][0] for node in json.loads(answer)["data"]["assetNodes"]} == {"a", "b"}
    assert listening == {"127.0.0.1"}
