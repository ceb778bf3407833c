"""Two real processes give the same training as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.train.build import build
from hasten.train.ranks import Ranks, current_ranks
from hasten.train.validate import HeldOut
from tests.train.jobs import CPU
from tests.train.ranks_script import One, train

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(
        [*command, "-m", "tests.train.ranks_script", str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["plain", "workers"])
def test_two_ranks_train_as_one_process(two_ranks: list[dict[str, Any]], run: str) -> None:
    alone = train(0)
    for rank in two_ranks:
        assert rank[run]["losses"] == pytest.approx(alone["losses"], rel=1e-11)
        for one, other in zip(rank[run]["weights"], alone["weights"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    for one, other in zip(two_ranks[0][run]["weights"], two_ranks[1][run]["weights"], strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_all_ranks_skip_the_update_that_overflowed_on_one(two_ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["overflow"] for rank in two_ranks)
    assert first["skipped"] == second["skipped"] == 1
    for one, other in zip(first["weights"], second["weights"], strict=True):
        assert torch.equal(one, other)
        assert torch.isfinite(one).all()


@pytest.mark.slow
def test_a_rank_without_a_sample_still_measures(two_ranks: list[dict[str, Any]]) -> None:
    alone = HeldOut(build(One(), device=CPU)).measure()
    assert set(alone) == {"loss", "error"}
    for rank in two_ranks:
        assert rank["held_out"] == pytest.approx(alone, rel=1e-6)


@pytest.mark.slow
def test_ranks_agree(two_ranks: list[dict[str, Any]]) -> None:
    for rank in two_ranks:  # one passed 1, the other 3
        assert rank["agreed"] == 1.0
        assert rank["slowest"] == [3.0, -1.0]
        assert rank["straggler"] == 1.5


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 5, 6])
def test_the_shares_of_all_ranks_are_the_batch(world: int, size: int) -> None:
    shares = [Ranks(rank, world).share(range(size)) for rank in range(world)]
    assert sorted(index for share in shares for index in share) == list(range(size))


def test_alone_everything_is_the_identity() -> None:
    ranks = current_ranks()
    assert ranks == Ranks(0, 1)
    assert ranks.share([3, 4]) == [3, 4]
    assert ranks.union(["b", "a"]) == ["a", "b"]
    assert torch.equal(ranks.sum(torch.ones(2)), torch.ones(2))
    assert ranks.agreed(3.0) == 3.0
    assert ranks.slowest([2.0, 5.0]) == [2.0, 5.0]
    assert ranks.straggler(4.0) == ranks.straggler(0.0) == 1.0
    parameter = torch.nn.Parameter(torch.zeros(1))
    ranks.sum_gradients([parameter])
    assert parameter.grad is None
