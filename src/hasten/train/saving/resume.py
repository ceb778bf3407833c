"""Find where a run stopped, and go on there, with as many ranks as before or with others."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.core.errors import DataError
from hasten.core.seeding import mix, seed_everything
from hasten.train.loop import Loop
from hasten.train.saving.folder import CheckpointFolder, Saved
from hasten.train.saving.layout import read_layout
from hasten.train.saving.memory import views_of
from hasten.train.saving.shards import Kept, joined
from hasten.train.saving.state import restore

_ANEW = 0x200
"""Salt of the random numbers of a rank that was not there when the checkpoint was written."""


@dataclass(frozen=True)
class Opened:
    """A checkpoint file in memory: what one rank wrote.

    Attributes:
        tensors: By name; they share the file's memory, and may be written to without changing the file.
        meta: Its plain data.
    """

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    """A checkpoint, the files of all ranks put together.

    Attributes:
        tensors: By name, those in shards as wholes; of what each rank has for itself, rank 0's.
        meta: Rank 0's plain data, with `samples` of all ranks.
        ranks: What each rank wrote.
    """

    tensors: Mapping[str, Kept]
    meta: Mapping[str, Any]
    ranks: tuple[Opened, ...]

    def of_rank(self, rank: int, world: int) -> tuple[dict[str, Kept], dict[str, Any]]:
        """Tensors and plain data for one of the ranks that go on: its own random numbers and buffers where it was there.

        Args:
            rank: Which one.
            world: How many go on. Where others wrote the checkpoint, each takes an equal share of the samples seen.
        """
        tensors, meta = dict(self.tensors), dict(self.meta)
        if rank < len(self.ranks):
            mine = self.ranks[rank]
            shards = mine.meta.get("shards", {})
            tensors |= {name: Kept.of(tensor) for name, tensor in mine.tensors.items() if name not in shards}
            meta["random"] = mine.meta["random"]
        if world == len(self.ranks):
            meta["samples"] = self.ranks[rank].meta["samples"]
        else:
            meta["samples"] = meta["samples"] // world + (rank < meta["samples"] % world)
        return tensors, meta


def open_file(path: Path) -> Opened:
    """Map a checkpoint file; nothing is read until it is used.

    Raises:
        CorruptError: It is no checkpoint, or cut.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    layout, meta = read_layout(memoryview(data)[: _header_bytes(data)], size, str(path))
    return Opened(views_of(data, layout), meta)


def open_whole(saved: Saved) -> Whole:
    """Map the files of all ranks of a checkpoint; nothing is read until it is used.

    Raises:
        CorruptError: One is no checkpoint or cut, or the parts of a tensor are not the whole of it.
    """
    ranks = tuple(open_file(saved.path / f"rank{rank}.safetensors") for rank in range(saved.world))
    parts: dict[str, list[Any]] = {}
    for opened in ranks:
        for name, place in opened.meta.get("shards", {}).items():
            parts.setdefault(name, []).append((place["shape"], place["start"], opened.tensors[name]))
    tensors = {name: Kept.of(tensor) for name, tensor in ranks[0].tensors.items() if name not in parts}
    samples = sum(opened.meta.get("samples", 0) for opened in ranks)
    return Whole({**tensors, **joined(parts, str(saved.path))}, {**ranks[0].meta, "samples": samples}, ranks)


def go_on(
    loop: Loop, run: Path, facts: Mapping[str, Any], say: Callable[[str], None], *, anyway: bool = False
) -> Saved | None:
    """Bring a loop that was just built to the newest whole checkpoint of its run; all ranks to the same one.

    Args:
        loop: The run.
        run: Its folder.
        facts: What decides the run: `code`, `data` and `seed`, as they are now.
        say: Told what a person must know.
        anyway: Go on although the code or the data changed.

    Returns:
        Where it goes on; None where there is no checkpoint, so that the run begins.

    Raises:
        DataError: Model, optimizer, code or data are other ones; says what differs.
    """
    saved = newest(loop, run, say)
    if saved is None:
        return None
    changed = [name for name in facts if name in saved.facts and saved.facts[name] != facts[name]]
    if changed and not anyway:
        told = "; ".join(f"{name} was {saved.facts[name]!r} and is {facts[name]!r}" for name in changed)
        raise DataError(
            f"{saved.path} was made with something else: {told}. Go back to it, train anew (another --out), or go on anyway "
            f"(--resume-anyway)."
        )
    if changed:
        say(f"going on although {', '.join(changed)} changed since checkpoint {saved.path.name}")
    if loop.ranks.world != saved.world and loop.ranks.rank == 0:
        say(f"checkpoint {saved.path.name} was written by {_ranks(saved.world)}; it goes on with {_ranks(loop.ranks.world)}")
    bring(loop, saved)
    return saved


def bring(loop: Loop, saved: Saved) -> None:
    """Bring a loop to where a checkpoint was taken; all ranks together.

    Raises:
        DataError: The model or the optimizer is another one.
        CorruptError: The checkpoint is not whole.
    """
    rank, world = loop.ranks.rank, loop.ranks.world
    restore(loop, *open_whole(saved).of_rank(rank, world))
    if rank >= saved.world:  # this rank is new: its random numbers must not be those of rank 0
        seed_everything(mix(loop.live.seed, _ANEW, saved.update, rank))


def newest(loop: Loop, run: Path, say: Callable[[str], None]) -> Saved | None:
    """The newest whole checkpoint, as rank 0 finds it: all must take the same, and one reads all that there is."""
    found: Saved | DataError | None = None
    if loop.ranks.rank == 0:
        try:
            found = CheckpointFolder(run).newest_valid(say)
        except DataError as error:
            if loop.ranks.world == 1:
                raise
            found = error
    found = loop.ranks.told(found)
    if isinstance(found, DataError):
        raise found
    return found


def _ranks(number: int) -> str:
    return f"{number} ranks" if number > 1 else "one process"


def _header_bytes(data: Any) -> int:
    return min(len(data), 8 + int.from_bytes(bytes(data[:8]), "little"))
