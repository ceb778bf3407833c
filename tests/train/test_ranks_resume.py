"""Resumed runs of several ranks: bit-identical with the same number of ranks, equal up to rounding with another number."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.chaos import SETTINGS, chaos
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.read import export_weights, open_whole
from hasten.train.checkpoints.resume import resume_run
from hasten.train.checkpoints.saver import Pace, Saver
from hasten.train.launch import launch
from hasten.train.loop import Loop
from tests.optimizations.contract import make_loop
from tests.train.resume_ranks_script import END, PLANS, STOP, Elastic

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def saved(loop: Loop, folder: Path) -> None:
    with Saver(loop, folder, Pace()) as saver:
        saver.save(wait=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of two ranks, which resumed the checkpoint of one process."""
    folder = tmp_path_factory.mktemp("ranks")
    one = make_loop(Elastic())
    one.run(STOP)
    saved(one, folder / "one")
    run_group_of(2, folder)
    return folder


@pytest.fixture(scope="module")
def folder_of_three(folder: Path) -> Path:
    """Return the folder with the results of three ranks, which resumed the checkpoint of two."""
    run_group_of(3, folder)
    return folder


def run_group_of(world: int, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(["src", "."]))
        assert launch(world, [sys.executable, "-m", "tests.train.resume_ranks_script", str(folder)]) == 0


def found(folder: Path, world: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"found{world}-{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the results of one process that was never stopped."""
    loop = make_loop(Elastic())
    loop.run(STOP)
    then = {name: value.clone() for name, value in loop.live.whole_state().items()}
    loop.run(END - STOP)
    return {"then": then, "losses": loop.losses[STOP:], "weights": loop.live.whole_state(), "samples": loop.position.samples}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [*(f"noisy {name}" for name in PLANS), "elastic"])
def test_the_same_number_of_ranks_resumes_bit_for_bit(folder: Path, name: str) -> None:
    for rank in found(folder, 2):
        whole, again = rank[name]["whole"], rank[name]["again"]
        assert again["losses"] == whole["losses"]
        assert equal(again["weights"], whole["weights"])
        assert again["samples"] == whole["samples"]


def test_each_rank_has_its_own_statistics_back(folder: Path) -> None:
    first, second = (rank["noisy shards"]["again"]["weights"]["noise.seen"] for rank in found(folder, 2))
    assert first != second


def test_each_rank_writes_only_its_own_shards(folder: Path) -> None:
    (written,) = CheckpointFolder(folder / "two").all()
    whole = open_whole(written)
    for name in ("model.embed.weight", "optimizer.0.exp_avg"):
        assert whole.tensors[name].shape == (11, 16)
        assert [rank.tensors[name].shape[0] for rank in whole.ranks] == [6, 5]
        assert whole.ranks[1].meta["shards"][name] == {"shape": [11, 16], "start": [6, 0]}
    assert "optimizer.0.step" not in whole.ranks[1].tensors  # equal on all ranks


def test_two_ranks_resume_from_one_up_to_rounding(folder: Path, alone: dict[str, Any]) -> None:
    went_on([rank["from one"] for rank in found(folder, 2)], alone["then"], alone)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sharded", "plain"])
def test_three_ranks_resume_from_two_up_to_rounding(folder_of_three: Path, alone: dict[str, Any], name: str) -> None:
    then = found(folder_of_three, 2)[0]["elastic"]["then"]
    went_on([rank[name] for rank in found(folder_of_three, 3)], then, alone)


def went_on(ranks: list[dict[str, Any]], then: dict[str, torch.Tensor], alone: dict[str, Any]) -> None:
    for rank in ranks:
        assert equal(rank["then"], then)  # the same weights, regardless of the sharding
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        near(rank["weights"], alone["weights"])
    assert sum(rank["samples"] for rank in ranks) == alone["samples"]


def test_one_process_resumes_from_shards(folder: Path, alone: dict[str, Any], tmp_path: Path) -> None:
    loop = make_loop(Elastic())
    assert resume_run(loop, folder / "two", {}, lambda _: None) is not None
    assert equal(loop.live.whole_state(), found(folder, 2)[0]["elastic"]["then"])
    saved(loop, tmp_path / "whole")
    for place in (folder / "two", tmp_path / "whole"):
        export_weights(CheckpointFolder(place).all()[0], tmp_path / f"{place.name}.safetensors")
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    loop.run(END - STOP)
    assert loop.losses == pytest.approx(alone["losses"], rel=1e-9)
    near(loop.live.whole_state(), alone["weights"])
    assert loop.position.samples == alone["samples"]


def test_tensors_sharded_by_columns_or_replicated_are_saved_too(folder: Path) -> None:
    whole = torch.arange(15.0).reshape(3, 5)
    first, second = (rank["boxes"] for rank in found(folder, 2))
    for name in ("columns", "copies", "hybrid"):
        assert torch.equal(first[name]["again"], whole)
        assert torch.equal(second[name]["again"], whole)
    assert (first["columns"]["start"], second["columns"]["start"]) == ([0, 0], [0, 3])
    assert torch.equal(torch.cat([first["columns"]["part"], second["columns"]["part"]], dim=1), whole)
    assert [rank["columns"]["is_first"] for rank in (first, second)] == [True, True]
    for name in ("copies", "hybrid"):  # written once
        assert [rank[name]["is_first"] for rank in (first, second)] == [True, False]
    assert "a checkpoint can store only replicated and sharded tensors" in first["sums"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["DDP, two ranks", "FSDP2, two ranks"])
def test_ranks_killed_at_any_moment_end_as_if_not_killed(name: str) -> None:
    found = chaos(4, 1, SETTINGS[name], lambda _: None)
    assert found["kills"] == 4
    assert found["wrong"] == 0
    assert max(found["newest_checkpoint_at_kill"]) > 0
