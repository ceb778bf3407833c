"""A conversion on a real Ray cluster of two workers gives the same bytes, even if a worker is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.data import Store
from hasten.data.convert.job import convert
from hasten.data.convert.readers import jsonl

LIMIT_S = 300
"""Seconds in which a cluster starts, converts and ends even on a busy core. Alone it takes ten."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 30)]
RECORDS = [{"id": number, "text": f"text {number} é"} for number in range(600)]


@pytest.fixture(autouse=True)
def _ray() -> None:
    if importlib.util.find_spec("ray") is None:
        assert not os.environ.get("HASTEN_CI"), "CI must have Ray installed"
        pytest.skip("Ray is not installed: pip install 'hasten[ray]'")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jsonl, "UNIT_BYTES", 3_001)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return path


def content(path: Path) -> list[list[str]]:
    """Return the checksums of a store's files by shard. The file names are random, but the bytes are not."""
    return [[file.sha256 for file in shard.files] for shard in Store(path).manifest.shards]


def run(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr  # Ray announces in one what a later release lacks
    return done.stdout


CLUSTER = """
import json, os, signal, sys, tempfile, time
from pathlib import Path
import ray
import hasten.data.convert.cluster as cluster
from hasten.core.errors import DataError
from hasten.data.convert.job import convert
from hasten.data.convert.readers import jsonl

jsonl.UNIT_BYTES = 3001
cluster.RETRIES = 1
root = Path(sys.argv[1])
whole = cluster.convert_unit

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def noted(task):
    (root / "pids").mkdir(exist_ok=True)
    (root / "pids" / str(os.getpid())).touch()
    time.sleep(0.1)
    return whole(task)

def deadly_once(task):
    if task.number == 3 and not (root / "killed").exists():
        (root / "killed").touch()
        die()
    return whole(task)

def deadly(task):
    return die() if task.number == 3 else whole(task)

def refusing(task):
    raise DataError("the message of the unit")

def converted(name, unit):
    cluster.convert_unit = unit
    try:
        made = convert(root / "a.jsonl", root / name, runner=cluster.RayRunner())
    except DataError as error:
        return str(error)
    return made.num_resumed

with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
    found = {name: converted(name, unit) for name, unit in (
        ("two workers", noted), ("killed once", deadly_once), ("refused", refusing), ("killed always", deadly))}
    found["goes on"] = converted("killed always", whole)
    ray.shutdown()
print(json.dumps(found))
"""


@pytest.mark.long
def test_a_cluster_of_two_workers_makes_the_same_bytes_even_if_workers_are_killed(source: Path) -> None:
    root = source.parent
    convert(source, root / "plain", processes=1)
    found = json.loads(run(["-c", CLUSTER, str(root)]).splitlines()[-1])
    assert len(list((root / "pids").iterdir())) >= 2
    assert (root / "killed").exists()
    assert (found["two workers"], found["killed once"]) == (0, 0)
    assert found["refused"] == "the message of the unit"
    assert "the Ray job failed" in found["killed always"]
    assert "completed units are kept. Run the same command again" in found["killed always"]
    assert found["goes on"] > 0
    want = content(root / "plain")
    assert len(want) > 5
    assert [content(root / name) for name in ("two workers", "killed once", "killed always")] == [want] * 3
    assert not (root / "refused" / "manifest.json").exists()


def test_the_command_makes_a_local_cluster_and_ends_it(source: Path) -> None:
    told = run(["-m", "hasten", "data", "convert", str(source), str(source.parent / "s"), "--ray", "--json"])
    made = json.loads(told[told.index("{\n") :])
    assert (made["num_rows"], made["num_bad"], made["num_units_resumed"]) == (len(RECORDS), 0, 0)
    assert Store(source.parent / "s").__getitems__(range(len(RECORDS))) == RECORDS
