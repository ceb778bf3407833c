"""Faults of a run, its disk and its receivers: training ends with the same weights, and each fault is reported once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hasten.core.plan import Plan
from hasten.monitor.alerts import deliver
from hasten.monitor.alerts.deliver import ALERTS, read_alerts
from hasten.monitor.alerts.live import LiveAlerts, read_options
from hasten.monitor.monitor import Pace
from hasten.monitor.of_loop import follow_loop
from hasten.monitor.windows_file import windows_path
from hasten.train.guards.non_finite import NonFinitePolicy
from hasten.train.run import RunOptions, train
from tests.train.test_non_finite import Badly

FULL = Path("/dev/full")
"""A file on a full disk."""


def weights(out: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(out / "model.pt", weights_only=True)
    return state


def assert_same_weights(one: Path, other: Path) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=0)


@contextmanager
def webhook(kind: str) -> Iterator[str]:
    """Yield the address of a server that refuses connections, or accepts them and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if kind == "hanging":
            server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/SECRET"


def run_badly(out: Path, said: list[str], webhooks: list[str]) -> None:
    """Train a job that skips an update because of a NaN."""
    alerts = LiveAlerts(*read_options(None, webhooks), say=said.append)
    observe = follow_loop(out, say=said.append, pace=Pace(steps=4, least_s=0.0), alerts=alerts)
    train(
        Badly(), Plan(), out, options=RunOptions(say=said.append, observe=observe, non_finite=NonFinitePolicy(policy="skip"))
    )


@pytest.fixture(scope="module")
def skipped_nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("skipped")
    run_badly(out, [], [])
    return out


@pytest.mark.parametrize("kind", ["refused", "hanging"])
def test_a_dead_webhook_is_reported_once(
    kind: str, tmp_path: Path, skipped_nan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "TIMEOUT_S", 0.2)
    said: list[str] = []
    with webhook(kind) as url:
        run_badly(tmp_path, said, [url])
    (words,) = [words for words in said if "webhook" in words]
    assert words.startswith("alerts do not reach the webhook at 127.0.0.1: it cannot be reached: ")
    assert "SECRET" not in words
    assert [alert.rule for alert in read_alerts(tmp_path) if alert.state == "firing"] == ["loss_not_finite"]
    assert_same_weights(tmp_path, skipped_nan)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("how", ["full disk", "a folder is in the way"])
def test_windows_and_alerts_that_cannot_be_written_are_reported_once(how: str, tmp_path: Path, skipped_nan: Path) -> None:
    said: list[str] = []
    for path in (windows_path(tmp_path), tmp_path / ALERTS):
        if how == "full disk":
            path.symlink_to(FULL)
        else:
            path.mkdir()
    run_badly(tmp_path, said, [])
    assert sum("the sink `folder` loses windows" in words for words in said) == 1
    assert sum("alerts do not reach alerts.jsonl" in words for words in said) == 1
    assert sum("nan" in words for words in said) == 1
    assert_same_weights(tmp_path, skipped_nan)


# Whole runs.

JOB = """
import os, signal, time, torch
from torch import nn
import hasten

FAULT, AT = os.environ.get("FAULT", ""), int(os.environ.get("AT", "0"))
LEAKED, SAMPLES = [], int(os.environ["SAMPLES"])


class Data(torch.utils.data.Dataset):
    slow = False

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if self.slow:
            time.sleep(0.004)
        if FAULT == "worker" and index == AT and torch.utils.data.get_worker_info() and not os.path.exists("killed"):
            os.mkdir("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), index / SAMPLES)


class Disturbed(hasten.Job):
    batch_size = 4
    steps = 0

    def model(self):
        return nn.Linear(4, 1)

    def train_data(self):
        self.data = Data()
        return self.data

    def loss(self, model, batch):
        time.sleep(0.008)
        self.steps += 1
        if self.steps >= AT and FAULT == "sleep":
            self.data.slow = True
        if self.steps >= AT and FAULT == "leak":
            LEAKED.append(torch.ones(2**18))
        return (model(batch) - 1).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)
"""


def run_disturbed(folder: Path, fault: str, updates: int, *more: str, at: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "hasten", "run", "job.py:Disturbed", "--updates", str(updates), "--out", "run", *more]
    environment = {**os.environ, "FAULT": fault, "AT": str(at), "SAMPLES": str(4 * updates)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False)


def fired(folder: Path) -> list[str]:
    return [alert.rule for alert in read_alerts(folder / "run") if alert.state == "firing"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "updates", "at", "rules"),
    [("sleep", 3200, 2600, {"slower", "data_wait"}), ("leak", 4600, 2400, {"memory_growth"})],
)
def test_a_fault_of_the_job_is_an_alert_and_changes_no_weight(
    fault: str, updates: int, at: int, rules: set[str], tmp_path: Path
) -> None:
    for name in ("plain", "disturbed"):
        (tmp_path / name).mkdir()
    done = run_disturbed(tmp_path / "disturbed", fault, updates, at=at)
    assert done.returncode == 0, done.stderr
    assert rules & set(fired(tmp_path / "disturbed"))
    plain = run_disturbed(tmp_path / "plain", "", updates)
    assert plain.returncode == 0, plain.stderr
    assert not rules & set(fired(tmp_path / "plain"))
    assert_same_weights(tmp_path / "disturbed" / "run", tmp_path / "plain" / "run")


@pytest.mark.slow
@pytest.mark.long
def test_after_a_loader_worker_was_killed_the_run_continues_without_workers(tmp_path: Path) -> None:
    for name in ("plain", "disturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hasten.toml").write_text("schema = 1\n\n[optimizations.loader_workers]\nnum_workers = 2\n")
    done = run_disturbed(tmp_path / "disturbed", "worker", 200, "--plan", "hasten.toml", at=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "disturbed" / "killed").is_dir()
    assert "loader_workers" in done.stderr
    plain = run_disturbed(tmp_path / "plain", "", 200, "--plan", "hasten.toml")
    assert plain.returncode == 0, plain.stderr
    assert_same_weights(tmp_path / "disturbed" / "run", tmp_path / "plain" / "run")
