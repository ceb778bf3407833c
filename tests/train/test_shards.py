"""Sharded tensors: written under any sharding, each can be read unsharded and under any other sharding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from hasten.core.errors import CorruptError
from hasten.train.checkpoints.file import SnapshotMemory
from hasten.train.checkpoints.folder import CheckpointFolder, Saved
from hasten.train.checkpoints.read import export_weights, open_whole
from hasten.train.checkpoints.resume import resume_run
from hasten.train.checkpoints.shards import StoredTensor, copy_overlap, joined, shard_of
from hasten.train.checkpoints.state import capture
from hasten.train.checkpoints.writer_process import write_file
from tests.train.test_checkpoints import made, same, weights

Box = tuple[tuple[int, ...], torch.Tensor]


def divided(tensor: torch.Tensor, world: int, dim: int = 0) -> list[Box]:
    """Return the boxes of `world` ranks under torch's sharding. The last ones may be smaller, or empty."""
    size = -(-tensor.shape[dim] // world)
    boxes = []
    for rank in range(world):
        begin = min(rank * size, tensor.shape[dim])
        start = tuple(begin if other == dim else 0 for other in range(tensor.dim()))
        boxes.append((start, tensor.narrow(dim, begin, min(size, tensor.shape[dim] - begin))))
    return boxes


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=3),
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    dims=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_every_division_gives_every_other(shape: list[int], worlds: tuple[int, int], dims: tuple[int, int]) -> None:
    tensor = torch.arange(prod(shape)).reshape(shape)
    first, second = (divided(tensor, world, dim % len(shape)) for world, dim in zip(worlds, dims, strict=True))
    written = [(shape, start, part.clone()) for start, part in first if part.numel() or start == (0,) * len(shape)]
    stored = joined({"x": written}, "here")["x"]
    assert torch.equal(stored.whole(), tensor)
    for start, part in second:
        box = torch.full(part.shape, -1)
        for written_start, written_part in stored.parts:
            copy_overlap(written_part, written_start, box, start)
        assert torch.equal(box, part)


def test_a_scalar_is_stored_too() -> None:
    target = torch.zeros(())
    StoredTensor.of(torch.tensor(2.5)).copy_to(target)
    assert target == 2.5
    assert shard_of(target) is None


@pytest.mark.parametrize(
    "parts",
    [
        [((4, 2), (0, 0), torch.zeros(2, 2))],
        [((4, 2), (0, 0), torch.zeros(2, 2)), ((4, 3), (2, 0), torch.zeros(2, 2))],
        [((4, 2), (0, 0), torch.zeros(2, 2)), ((4, 2), (2, 0), torch.zeros(2, 2).int())],
    ],
)
def test_missing_parts_are_an_error(parts: list[Any]) -> None:
    with pytest.raises(CorruptError, match=r"here: x has shape \[4, 2\] with 8 numbers, but the files of all ranks have"):
        joined({"x": parts}, "here")


# A checkpoint of several ranks, made from the state of one process.


def write(folder: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> tuple[int, str]:
    memory = SnapshotMemory()
    size = memory.take(tensors, meta)
    digest = write_file(memory.handle, size, folder)
    memory.close()
    return size, digest


def checkpoint_of(run: Path, updates: int, world: int) -> tuple[Saved, dict[str, torch.Tensor]]:
    """Train, and write the state as `world` ranks with sharded parameters do."""
    loop = made()
    loop.run(updates)
    state = capture(loop)
    folder = CheckpointFolder(run)
    place = folder.place(updates)
    files = {}
    for rank in range(world):
        tensors, shards = {}, {}
        for name, tensor in state.tensors.items():
            own = name.startswith(("random.", "buffer.")) or "running" in name or "num_batches" in name
            if own or tensor.dim() == 0:
                if rank == 0 or own:
                    tensors[name] = tensor
                continue
            start, part = divided(tensor, world)[rank]
            if part.numel() or rank == 0:
                tensors[name] = part
                shards[name] = {"shape": list(tensor.shape), "start": list(start)}
        meta = {"rank": rank, "world": world, "samples": 5 + rank, "random": state.meta["random"]}
        meta = {**(state.meta if rank == 0 else {}), **meta, "shards": shards}
        files[f"rank{rank}.safetensors"] = write(place / f"rank{rank}.safetensors", tensors, meta)
    return folder.commit(updates, files, world=world), weights(loop)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_one_process_resumes_from_the_shards_of_several_ranks(tmp_path: Path, world: int) -> None:
    whole = made()
    whole.run(7)
    _, want = checkpoint_of(tmp_path, 4, world)
    again = made()
    said: list[str] = []
    saved = resume_run(again, tmp_path, {}, said.append)
    assert saved is not None
    assert saved.world == world
    assert same(weights(again), want)
    assert again.position.samples == sum(5 + rank for rank in range(world))
    assert said == ([f"checkpoint 00000004 was written by {world} ranks; resuming with one process"] if world > 1 else [])
    again.run(3)
    assert same(weights(again), weights(whole))


def test_exported_weights_are_the_same_bytes_for_any_number_of_ranks(tmp_path: Path) -> None:
    for world in (1, 2, 3):
        saved, _ = checkpoint_of(tmp_path / str(world), 4, world)
        for kind in ("safetensors", "pt"):
            export_weights(saved, tmp_path / f"{world}.{kind}")
    for kind in ("safetensors", "pt"):
        one, two, three = ((tmp_path / f"{world}.{kind}").read_bytes() for world in (1, 2, 3))
        assert one == two == three


def test_a_checkpoint_without_one_of_its_shards_is_skipped(tmp_path: Path) -> None:
    checkpoint_of(tmp_path, 2, 2)
    newest, _ = checkpoint_of(tmp_path, 4, 2)
    (newest.path / "rank1.safetensors").unlink()
    said: list[str] = []
    saved = resume_run(made(), tmp_path, {}, said.append)
    assert saved is not None
    assert saved.update == 2
    assert said[0] == "checkpoint 00000004 is skipped: rank1.safetensors is missing"


def test_a_manifest_that_names_too_few_ranks_is_refused(tmp_path: Path) -> None:
    saved, _ = checkpoint_of(tmp_path, 2, 2)
    manifest = saved.path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "world": 1}))
    with pytest.raises(CorruptError, match="but the files of all ranks have"):
        resume_run(made(), tmp_path, {}, print)


def test_each_rank_gets_its_own_back_and_a_new_one_gets_rank_0s(tmp_path: Path) -> None:
    saved, _ = checkpoint_of(tmp_path, 2, 2)
    whole = open_whole(saved)
    samples: Sequence[list[int]] = [
        [whole.of_rank(rank, world)[1]["samples"] for rank in range(world)] for world in (1, 2, 3)
    ]
    assert samples == [[11], [5, 6], [4, 4, 3]]
    own = whole.ranks[1].tensors["buffer.kept"]
    own += 100.0
    kept = [whole.of_rank(rank, 3)[0]["buffer.kept"].whole().tolist() for rank in range(3)]
    assert kept[1] == [value + 100.0 for value in kept[0]]
    assert kept[2] == kept[0]
