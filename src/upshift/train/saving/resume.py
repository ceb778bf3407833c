"""Find where a run stopped, and go on there."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from upshift.core.errors import DataError
from upshift.core.seeding import mix, seed_everything
from upshift.train.loop import Loop
from upshift.train.saving.folder import CheckpointFolder, Saved
from upshift.train.saving.layout import read_layout
from upshift.train.saving.memory import views_of
from upshift.train.saving.state import restore

_ANEW = 0x200
"""Salt of the random numbers of a rank that was not there when the checkpoint was written."""


@dataclass(frozen=True)
class Opened:
    """A checkpoint file in memory.

    Attributes:
        tensors: By name; they share the file's memory, and may be written to without changing the file.
        meta: Its plain data.
    """

    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]


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


def go_on(
    loop: Loop, run: Path, facts: Mapping[str, Any], say: Callable[[str], None], *, anyway: bool = False
) -> Saved | None:
    """Bring a loop that was just built to the newest whole checkpoint of its run.

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
    saved = CheckpointFolder(run).newest_valid(say)
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
    bring(loop, saved)
    return saved


def bring(loop: Loop, saved: Saved) -> None:
    """Bring a loop to where a checkpoint was taken; all ranks together.

    Raises:
        DataError: The model or the optimizer is another one.
    """
    leading = open_file(saved.path / "rank0.safetensors")
    rank = loop.ranks.rank
    mine = leading
    if rank and f"rank{rank}.safetensors" in saved.files:
        mine = open_file(saved.path / f"rank{rank}.safetensors")
    tensors = {**leading.tensors, **{name: value for name, value in mine.tensors.items() if name.startswith("random.")}}
    restore(loop, tensors, mine.meta, leads_meta=leading.meta)
    if rank and mine is leading:  # this rank is new: its random numbers must not be those of rank 0
        seed_everything(mix(loop.live.seed, _ANEW, saved.update, rank))


def _header_bytes(data: Any) -> int:
    return min(len(data), 8 + int.from_bytes(bytes(data[:8]), "little"))
