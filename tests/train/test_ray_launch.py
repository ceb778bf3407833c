"""Ranks started by Ray: the environment of each, and a real group on a local cluster of two workers."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.ray_launch import Place, RankHost, environments

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import hasten

class J(hasten.Job):
    batch_size, epochs, seed = 4, 2, 1

    def model(self):
        return nn.Linear(3, 1)

    def train_data(self):
        x = torch.randn(18, 3, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, batch):
        return hasten.Loss(nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0]))
"""


def test_ranks_of_one_machine_share_it_and_meet_on_the_loopback() -> None:
    places = [Place("a", "10.0.0.1", 5000 + rank, 8) for rank in range(2)]
    first, second = environments(places, {"HASTEN_SCRATCH": "/x", "HOME": "/root"})
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    assert {one["MASTER_ADDR"] for one in (first, second)} == {"127.0.0.1"}
    assert {one["MASTER_PORT"] for one in (first, second)} == {"5000"}
    assert first["OMP_NUM_THREADS"] == "4"
    assert first["HASTEN_SCRATCH"] == "/x"
    assert "HOME" not in first
    assert first["PYTHONHASHSEED"] == second["PYTHONHASHSEED"] == "0"


def test_ranks_of_several_machines_meet_at_the_first() -> None:
    places = [Place("a", "10.0.0.1", 5000, 8), Place("b", "10.0.0.2", 5001, 4), Place("a", "10.0.0.1", 5002, 8)]
    found = environments(places, {"OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "7"})
    assert {one["PYTHONHASHSEED"] for one in found} == {"7"}
    assert [one["LOCAL_RANK"] for one in found] == ["0", "0", "1"]
    assert [one["LOCAL_WORLD_SIZE"] for one in found] == ["2", "1", "2"]
    assert {one["MASTER_ADDR"] for one in found} == {"10.0.0.1"}
    assert all("GLOO_SOCKET_IFNAME" not in one for one in found)
    assert {one["OMP_NUM_THREADS"] for one in found} == {"3"}


@pytest.fixture
def ray() -> None:
    """Skip if Ray is not installed. CI must have it."""
    if importlib.util.find_spec("ray") is None:
        assert not os.environ.get("HASTEN_CI"), "CI must have Ray installed"
        pytest.skip("Ray is not installed: pip install 'hasten[ray]'")


def hasten(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-m", "hasten", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_two_ranks_on_a_local_cluster_train_as_two_here(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    by_ray = hasten(tmp_path, "run", "job.py:J", "--out", "ray", "--ranks", "2", "--ray")
    assert by_ray.returncode == 0, by_ray.stderr[-3000:]
    here = hasten(tmp_path, "run", "job.py:J", "--out", "here", "--ranks", "2")
    assert here.returncode == 0, here.stderr[-3000:]
    want, have = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("here", "ray"))
    assert all(torch.equal(want[name], have[name]) for name in want)
    last = [json.loads(line) for line in (tmp_path / "ray" / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["update"] == 10


@pytest.mark.long
@pytest.mark.usefixtures("ray")
def test_a_rank_that_fails_on_the_cluster_ends_all(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        JOB.replace(
            "return nn.Linear",
            "import os\n        os._exit(7) if os.environ['RANK'] == '1' else 0\n        return nn.Linear",
        )
    )
    done = hasten(tmp_path, "run", "job.py:J", "--out", "ray", "--ranks", "2", "--ray")
    assert done.returncode == 7, done.stderr[-3000:]


def test_a_rank_receives_a_signal_that_came_before_its_start() -> None:
    host = RankHost()
    host.stop(signal.SIGTERM)
    assert host.run([sys.executable, "-c", "import time; time.sleep(60)"], ".", {}) == -signal.SIGTERM


@pytest.mark.long
@pytest.mark.usefixtures("ray")
def test_a_signal_to_the_launcher_saves_on_all_ranks(tmp_path: Path) -> None:
    """Test SIGINT, which Ray's workers block and their children inherit as blocked."""
    (tmp_path / "job.py").write_text(JOB.replace("4, 2, 1", "4, 10**6, 1"))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    out = tmp_path / "ray"
    words = ("run", "job.py:J", "--out", "ray", "--ranks", "2", "--ray", "--checkpoint-every", "10000000")
    with subprocess.Popen(
        [sys.executable, "-m", "hasten", *words], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        until = time.monotonic() + 80
        while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 130, said[-3000:]
    assert "Stopped by SIGINT" in said
    saved = CheckpointFolder(out).all()[-1]
    assert set(saved.files) == {"rank0.safetensors", "rank1.safetensors"}
