"""Test the techniques for several ranks in two real processes, against the contract and the numbers of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.optimizations.gradient_buckets import GradientBuckets
from hasten.optimizations.gradient_compression import GradientCompression
from hasten.optimizations.sharding import Sharding
from hasten.train.build import build
from hasten.train.validate import HeldOut
from tests.optimizations.cases import GROUPED
from tests.optimizations.contract import CPU, facts, make_loop
from tests.optimizations.ranks_script import CONTRACT, ROUNDED, TRAINED, HeldOutStack, Single, Single32, train

ROOT = Path(__file__).parents[2]
RANKS = 2
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(
        [*command, "-m", "tests.optimizations.ranks_script", str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"found{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def trained(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"trained{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("part", CONTRACT)
@pytest.mark.parametrize("name", GROUPED)
def test_the_contract_holds_on_every_rank(found: list[dict[str, Any]], name: str, part: str) -> None:
    for rank in found:
        assert not rank["contract"][f"{name}-{part}"], rank["contract"][f"{name}-{part}"]


@pytest.mark.parametrize("name", TRAINED)
def test_two_ranks_train_as_one_process(trained: list[dict[str, Any]], name: str) -> None:
    alone = train(TRAINED[name][0], ())
    for rank in trained:
        assert rank[name]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        assert list(rank[name]["weights"]) == list(alone["weights"])
        for key, value in rank[name]["weights"].items():
            torch.testing.assert_close(value, alone["weights"][key], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [*TRAINED, *ROUNDED])
def test_all_ranks_hold_the_same_weights(trained: list[dict[str, Any]], name: str) -> None:
    first, second = (rank[name] for rank in trained)
    assert first["losses"] == second["losses"]
    for key, value in first["weights"].items():
        assert torch.equal(value, second["weights"][key]), key


@pytest.mark.parametrize(("name", "near"), [("bfloat16", 2e-2), ("float16", 5e-3), ("half_shards", 2e-2)])
def test_rounded_gradients_stay_near(trained: list[dict[str, Any]], name: str, near: float) -> None:
    losses = trained[0][name]["losses"][:3]  # later in a run, small differences grow
    alone = train(Single32, ())["losses"][:3]
    assert losses == pytest.approx(alone, rel=near)
    assert losses != pytest.approx(alone, rel=1e-6)


def test_only_the_last_pass_of_a_window_is_summed(trained: list[dict[str, Any]]) -> None:
    """Check that an epoch of `Thirds` sums its window of three, and the shorter window as a single message."""
    assert trained[0]["Thirds-buckets"]["counters"]["bucket_sums"] == 6  # of 11 updates
    assert trained[0]["Single-buckets"]["counters"]["bucket_sums"] == 11
    assert trained[0]["Fifths-buckets"]["counters"]["bucket_sums"] == 11
    assert trained[0]["Single-parts"]["counters"]["bucket_sums"] == 11
    counters = trained[0]["Single-buckets"]["counters"]
    assert counters["buckets_sent"] > counters["bucket_sums"]
    assert counters["buckets_early"] == counters["buckets_sent"] - counters["bucket_sums"]


def test_fewer_bytes_travel(trained: list[dict[str, Any]]) -> None:
    half = trained[0]["bfloat16"]["counters"]
    assert half["bucket_bytes_sent"] == half["bucket_bytes"] / 2


def test_a_rank_without_a_held_out_sample_takes_part(found: list[dict[str, Any]]) -> None:
    alone = HeldOut(build(HeldOutStack(), device=CPU)).measure()
    for rank in found:
        assert rank["held_out"] == pytest.approx(alone, rel=1e-9)


def test_unsupported_jobs_are_refused_with_a_reason(found: list[dict[str, Any]]) -> None:
    said = found[0]["refusals"]
    assert "batch_size is 1 for 2 ranks" in said["few"]
    assert "add gradient_buckets to the plan" in said["alone"]


@pytest.mark.parametrize("item", [GradientBuckets(), Sharding()])
def test_one_process_alone_is_refused(item: GradientBuckets | Sharding) -> None:
    with pytest.raises(JobError, match="needs several ranks: start the job with --ranks"):
        make_loop(Single(), item)


def test_settings() -> None:
    job = {"ranks": 2, "num_params": 10**7}
    fit = GradientBuckets.fit(facts(job=job, phase_frac={"sync": 0.3, "backward": 0.1}))
    assert fit.max_gain_frac == pytest.approx(0.3)
    assert {item.bucket_mb for item in fit.settings if isinstance(item, GradientBuckets)} == {1, 25}
    small = GradientBuckets.fit(facts(job={"ranks": 2}))
    assert {item.bucket_mb for item in small.settings if isinstance(item, GradientBuckets)} == {1}
    norms = {"ranks": 2, "module_counts": {"BatchNorm1d": 1}}
    assert len(Sharding.fit(facts(job=norms)).settings) == 1
    assert len(Sharding.fit(facts(job={"ranks": 2})).settings) == 2
    with pytest.raises(ValueError, match="must be"):
        GradientBuckets(bucket_mb=0)
    with pytest.raises(ValueError, match="must be bfloat16 or float16"):
        GradientCompression(dtype="int8")  # type: ignore[arg-type]
