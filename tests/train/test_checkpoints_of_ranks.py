"""How several ranks agree on their checkpoints, tested on one rank; the other one is simulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.core.errors import DataError, MachineError
from hasten.core.job import Loss
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.train.build import build
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.checkpoints.resume import resume_run
from hasten.train.checkpoints.saver import Pace, Saver, Turn
from hasten.train.loop import Loop
from hasten.train.ranks import Ranks
from hasten.train.run import RunOptions, train
from tests.train.test_checkpoints import CPU, Everything

NOT_WRITTEN = (7, "", "rank1.safetensors could not be written: No space left on device")


@dataclass(frozen=True)
class Played(Ranks):
    """One rank of two. The other rank passes the next item of `brings`, or the same value as this rank."""

    world: int = 2
    brings: list[Any] = field(default_factory=list)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def sum_gradients(self, parameters: Any) -> None:
        return

    def gather(self, value: Any) -> list[Any]:
        other = self.brings.pop(0) if self.brings else value
        return [value, other] if self.rank == 0 else [other, value]


def saver_of(run: Path, ranks: Played, said: list[str]) -> tuple[Loop, Saver]:
    loop = Loop(build(Everything(), device=CPU), ranks=ranks)
    return loop, Saver(loop, run, Pace(every=1), say=said.append)


def test_rank_0_completes_a_checkpoint_with_the_files_of_all_ranks(tmp_path: Path) -> None:
    loop, saver = saver_of(tmp_path, Played(brings=[(123, "abc", "")]), [])
    loop.run(1)
    saved = saver.save(wait=True)
    assert saved is not None
    assert saved.world == 2
    assert saved.files["rank1.safetensors"] == (123, "abc")
    saver.close()


def test_another_rank_writes_its_file_and_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    loop, saver = saver_of(tmp_path, Played(rank=1, brings=[NOT_WRITTEN]), said)
    loop.run(1)
    assert saver.save(wait=True) is None
    loop.run(1)
    assert saver.save(wait=True) is None
    saver.close()
    assert [path.name for path in (tmp_path / "checkpoints" / "00000002").iterdir()] == ["rank1.safetensors"]
    assert CheckpointFolder(tmp_path).all() == []
    assert said == []


def test_nothing_is_settled_before_all_have_written(tmp_path: Path) -> None:
    ranks = Played()
    loop, saver = saver_of(tmp_path, ranks, [])
    loop.run(1)
    saver.save()
    while not saver.turn().written:
        time.sleep(0.01)
    loop.run(1)
    assert saver.after_update(Turn(written=False, due=False)) is None  # the other rank is still writing
    assert CheckpointFolder(tmp_path).all() == []
    saved = saver.after_update(Turn(written=True, due=False))
    assert saved is not None
    assert saved.update == 1
    saver.close()


def test_if_one_rank_cannot_write_all_ranks_retry(tmp_path: Path) -> None:
    said: list[str] = []
    loop, saver = saver_of(tmp_path, Played(brings=[NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN]), said)
    for _ in range(2):
        loop.run(1)
        assert saver.save(wait=True) is None
    loop.run(1)
    with pytest.raises(MachineError, match=r"Writing a checkpoint failed 3 times in a row: rank1\.safetensors"):
        saver.save(wait=True)
    assert [line.partition(":")[0] for line in said] == ["checkpoint 1 failed", "checkpoint 2 failed"]
    assert CheckpointFolder(tmp_path).all() == []
    saver.close()


def test_after_an_error_no_rank_waits_for_the_others(tmp_path: Path) -> None:
    def hangs(_: Any) -> list[Any]:
        raise AssertionError("it asks the others")

    ranks = Played()
    object.__setattr__(ranks, "gather", hangs)
    loop, saver = saver_of(tmp_path, ranks, [])
    loop.run(1)

    def fails() -> None:
        with saver:
            saver.save()
            raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        fails()
    assert CheckpointFolder(tmp_path).all() == []


def test_a_complete_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    loop, saver = saver_of(tmp_path, Played(), [])
    loop.run(1)
    saver.save(wait=True)
    path = tmp_path / "checkpoints" / "00000001" / "manifest.json"
    before = path.stat()
    saver.save(best=True, wait=True)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert CheckpointFolder(tmp_path).best() is not None
    saver.went_back()  # the checkpoint is no longer that of this run
    saver.save(wait=True)
    assert path.stat().st_ino != before.st_ino
    saver.close()


def test_a_new_run_needs_a_folder_without_checkpoints(tmp_path: Path) -> None:
    train(Everything(), Plan(), tmp_path, max_updates=3, options=RunOptions(pace=Pace(every=1)))
    with pytest.raises(DataError, match=r"has checkpoints of a run, up to update 3: resume it \(--resume\)"):
        train(Everything(), Plan(), tmp_path, max_updates=3, options=RunOptions(pace=Pace(every=1)))


@dataclass
class OneRank:
    """Averaging gradients over one rank during the backward pass, which does not change them."""

    live: LiveJob
    kind = "buckets"
    each_pass = False

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        return self.live.compute_loss(batch)

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        objective.backward()

    def state_dict(self) -> dict[str, Any]:
        return self.live.model.state_dict()


def test_the_divisor_of_a_loop_is_restored_exactly(tmp_path: Path) -> None:
    """The divisor must be restored as a tensor, because division by a tensor multiplies with its reciprocal."""
    first, again = (Loop(build(Everything(), device=CPU)) for _ in range(2))
    for loop in (first, again):
        loop.live.sync = OneRank(loop.live)
    first.run(2)
    with Saver(first, tmp_path, Pace()) as saver:
        saver.save(wait=True)
    resume_run(again, tmp_path, {}, print)
    assert isinstance(first._unit, torch.Tensor)
    assert isinstance(again._unit, torch.Tensor)
    assert again._unit.dtype == first._unit.dtype
    assert torch.equal(again._unit, first._unit)
