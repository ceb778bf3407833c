"""Windows of scripts: inside `attach`, under `hasten run`, and on two ranks."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hasten
from hasten.cli.following import recorded
from hasten.core.errors import HastenError
from hasten.monitor.monitor import Pace
from hasten.monitor.window import Window
from hasten.monitor.windows_file import read_windows, windows_path
from hasten.script.attach import Watched
from hasten.script.monitoring import Following, ScriptMonitor
from hasten.script.watch.fetch import BatchCounts, Fetch, first_tensor
from hasten.script.watch.record import PHASES, WINDOW, Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained
from hasten.train.records.record import ended_words
from hasten.train.records.runs import open_run

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = Path(__file__).parents[1] / "tune" / "scripts" / "loop.py"


def trained(steps: int, *, words: bool = False) -> float:
    """Train a small model, and return the last loss."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(24, 2)) if words else nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    inputs = torch.randint(0, 8, (steps * 4, 6)) if words else torch.randn(steps * 4, 6)
    loss = torch.zeros(())
    for x, y in DataLoader(TensorDataset(inputs, torch.zeros(steps * 4).long()), batch_size=4):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return float(loss.detach())


def whole(windows: list[Window], steps: int) -> list[Window]:
    """Check that windows cover all steps after the first, without a gap."""
    assert (windows[0].from_step, windows[-1].to_step) == (1, steps)
    assert all(before.to_step == after.from_step for before, after in pairwise(windows))
    return windows


def test_an_attached_loop_has_windows(tmp_path: Path) -> None:
    before = (torch.nn.utils.clip_grad_norm_, torch.Tensor.backward)
    pace = Pace(steps=20, least_s=0.0, cost_frac=1e9)
    with Watched(following=Following(out=tmp_path / "run", pace=pace)) as watched:
        loss = trained(200, words=True)
    assert watched.failures == {}
    windows = whole(read_windows(windows_path(tmp_path / "run")), 200)
    last = windows[-1]
    assert last.values["training.loss"] == pytest.approx(loss, abs=0.01)  # of one of the last steps
    assert windows[-2].values["training.learning_rate"] == 0.25  # the optimizer ended with the function
    assert last.values["training.gradient_norm"] > 0
    assert last.values["training.tokens"] == pytest.approx(6 * last.values["training.samples"])
    samples = sum(window.values["training.samples"] * window.seconds for window in windows)
    assert samples == pytest.approx(199 * 4, rel=0.05)  # batches are fetched before their step
    assert {"data", "forward", "backward", "optimizer"} <= set(last.phases)
    assert (torch.nn.utils.clip_grad_norm_, torch.Tensor.backward) == before


def test_phases_are_summed_over_all_steps_also_over_more_than_are_kept(tmp_path: Path) -> None:
    recorder = Recorder(updates=0, seconds=0.0)
    fetch = Fetch(recorder, Trained())
    monitor = ScriptMonitor(
        Following(out=tmp_path), recorder, Seams(recorder, fetch), fetch, say=print, failed=lambda _: None
    )
    try:
        data = [1.0, *[0.0] * (len(PHASES) - 1)]
        recorder.num_steps = 1  # the first step has no start, and so no time
        assert (monitor._progress().step, monitor._progress().phases) == (1, {})
        recorder.steps.extend([data] * 3)
        recorder.num_steps = 4
        assert (monitor._progress().step, monitor._progress().phases) == (4, {"data": 3.0})
        recorder.steps.extend([data] * 2 * WINDOW)
        recorder.num_steps = 4 + 2 * WINDOW
        assert monitor._progress().phases == {"data": 3.0 + 2 * WINDOW}
        recorder.num_steps = 0  # the loop marks its steps from here on
        recorder.steps.clear()
        assert (monitor._progress().step, monitor._progress().phases) == (4 + 2 * WINDOW, {"data": 3.0 + 2 * WINDOW})
    finally:
        monitor.end()


def test_attach_writes_to_the_places_that_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hasten.attach(out=tmp_path, log_to=["parquet"]):
        trained(8)
    assert {path.name for path in tmp_path.iterdir()} >= {"windows.jsonl", "windows.parquet"}
    with pytest.raises(HastenError, match="no sink `nowhere`"):
        hasten.attach(out=tmp_path, log_to=["nowhere"])
    monkeypatch.chdir(tmp_path)
    plan = tmp_path / "hasten.toml"
    plan.write_text('schema = 1\nlog_to = ["parquet"]\n')
    with hasten.attach(plan):
        trained(8)
    assert (tmp_path / "hasten-run" / "windows.parquet").is_file()


def test_a_folder_that_cannot_be_written_never_ends_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with hasten.attach(out=tmp_path / "file" / "run"):
        assert trained(8) > 0
    assert capsys.readouterr().err.count("the sink `folder` loses windows") == 1


def test_samples_and_tokens_are_those_of_the_first_tensor() -> None:
    counts = BatchCounts()
    counts.add({"ids": torch.zeros(3, 5, dtype=torch.long), "mask": torch.ones(9)})
    counts.add([(torch.zeros(2, 5), torch.zeros(2))])
    counts.add(["text", 1])
    counts.add([])
    assert (counts.samples, counts.tokens) == (5, 15)
    assert first_tensor({}) is None


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, {"outcome": "finished"}), (3, {"outcome": "failed", "error": "exit status 3"}), (-15, {"signal": "SIGTERM"})],
)
def test_the_record_of_a_script_says_how_it_ended(tmp_path: Path, code: int, outcome: dict[str, str]) -> None:
    with recorded({"out": str(tmp_path)}, ("train.py", "--lr", "1"), ["fused_optimizer"], "schema = 1\n") as record:
        assert record is not None
        assert open_run(tmp_path).state == "running"
        record.exited(code)
    last = open_run(tmp_path).last
    assert outcome.items() <= last.items()
    assert (last["arguments"], last["plan"]) == (["train.py", "--lr", "1"], ["fused_optimizer"])


@pytest.mark.slow
def test_an_unmodified_script_and_its_ranks_have_windows(tmp_path: Path) -> None:
    def run(*words: str) -> None:
        command = [sys.executable, "-m", "hasten", "run", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert "hasten:" not in done.stderr

    run(str(LOOP), "--out", "one", "--", "--epochs", "2")
    (one,) = (tmp_path / "one").glob("windows*.jsonl")
    windows = read_windows(one)
    assert windows[-1].to_step > 4
    assert windows[-1].values["training.loss"] > 0
    run_of = open_run(tmp_path / "one")
    assert (run_of.state, run_of.last["updates"]) == ("finished", windows[-1].to_step)
    assert ended_words(run_of.last) == f"finished at update {windows[-1].to_step}"
    ranks = ["-m", "torch.distributed.run", "--", "--nproc-per-node", "2", "--standalone", str(SCRIPTS / "ranks.py")]
    run("--out", "two", *ranks)
    first, second = (read_windows(windows_path(tmp_path / "two", rank)) for rank in (0, 1))
    assert (second[0].start.rank, second[0].start.world, second[0].start.run) == (1, 2, first[0].start.run)
    assert first[-1].to_step == second[-1].to_step > 1
