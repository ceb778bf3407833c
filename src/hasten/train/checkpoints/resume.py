"""Find where a run stopped, and go on there, with as many ranks as before or with others."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.core.batch import content
from hasten.core.errors import DataError
from hasten.core.live import LiveJob
from hasten.core.seeding import kept_random_state, mix, seed_everything
from hasten.train.checkpoints.folder import CheckpointFolder, Saved
from hasten.train.checkpoints.read import open_whole
from hasten.train.checkpoints.state import restore
from hasten.train.loop import Loop

_ANEW = 0x200
"""Salt of the random numbers of a rank that was not there when the checkpoint was written."""


def resume_run(
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
    saved = newest_checkpoint(loop, run, say)
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
    load_checkpoint(loop, saved)
    return saved


def load_checkpoint(loop: Loop, saved: Saved) -> None:
    """Bring a loop to where a checkpoint was taken; all ranks together.

    Raises:
        DataError: The model or the optimizer is another one.
        CorruptError: The checkpoint is not whole.
    """
    rank, world = loop.ranks.rank, loop.ranks.world
    restore(loop, *open_whole(saved).of_rank(rank, world))
    if rank >= saved.world:  # this rank is new: its random numbers must not be those of rank 0
        seed_everything(mix(loop.live.seed, _ANEW, saved.update, rank))


def newest_checkpoint(loop: Loop, run: Path, say: Callable[[str], None]) -> Saved | None:
    """The newest whole checkpoint, as rank 0 finds it: all must take the same, and one reads all that there is."""
    found: Saved | DataError | None = None
    if loop.ranks.rank == 0:
        try:
            found = CheckpointFolder(run).newest_valid(say)
        except DataError as error:
            if loop.ranks.world == 1:
                raise
            found = error
    found = loop.ranks.broadcast(found)
    if isinstance(found, DataError):
        raise found
    return found


def _ranks(number: int) -> str:
    return f"{number} ranks" if number > 1 else "one process"


_LOOKED_AT = 3


def run_facts(live: LiveJob) -> dict[str, Any]:
    """`code`, `data` and `seed` of a live job; `code` is empty where the source cannot be read."""
    return {"code": _code(live), "data": _data(live), "seed": live.seed, "batch_size": live.job.batch_size}


def _code(live: LiveJob) -> str:
    digest = hashlib.sha256()
    for kind in type(live.job).__mro__:
        if kind.__module__.partition(".")[0] in {"builtins", "abc", "typing", "torch", "hasten"}:
            continue
        try:
            digest.update(Path(inspect.getfile(kind)).read_bytes())
        except (TypeError, OSError):
            return ""
    return digest.hexdigest()[:16]


def _data(live: LiveJob) -> str:
    """Of a map-style dataset its length and a few samples; an iterable one tells nothing without being read."""
    if live.num_samples is None:
        return "iterable"
    digest = hashlib.sha256(str(live.num_samples).encode())
    if live.pipeline.load_is_random:
        return f"{live.num_samples} samples"
    with kept_random_state():
        for place in range(_LOOKED_AT):
            sample = live.pipeline.load(place * (live.num_samples - 1) // max(_LOOKED_AT - 1, 1))
            digest.update(repr(content(sample)).encode())
    return digest.hexdigest()[:16]
