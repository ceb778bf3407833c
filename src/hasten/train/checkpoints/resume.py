"""Resume a run from its newest checkpoint, with the same number of ranks or another."""

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

_NEW_RANK = 0x200
"""Seed salt for a rank that did not exist when the checkpoint was written."""


def resume_run(
    loop: Loop, run: Path, facts: Mapping[str, Any], say: Callable[[str], None], *, anyway: bool = False
) -> Saved | None:
    """Restore a newly built loop from the newest intact checkpoint of its run, the same on all ranks.

    Args:
        loop: The loop of the run.
        run: The run's folder.
        facts: Current fingerprints: `code`, `data` and `seed`.
        say: Called with messages for the user.
        anyway: Resume even if the code or the data changed.

    Returns:
        The checkpoint; None if there is none and the run starts from the beginning.

    Raises:
        DataError: Model, optimizer, code or data changed. Says what differs.
    """
    saved = newest_checkpoint(loop, run, say)
    if saved is None:
        return None
    changed = [name for name in facts if name in saved.facts and saved.facts[name] != facts[name]]
    if changed and not anyway:
        listed = "; ".join(f"{name} was {saved.facts[name]!r} and is now {facts[name]!r}" for name in changed)
        raise DataError(
            f"The run changed since {saved.path}: {listed}. Revert the change, start a new run (another --out), or resume "
            f"anyway (--resume-anyway)."
        )
    if changed:
        say(f"resuming although {', '.join(changed)} changed since checkpoint {saved.path.name}")
    if loop.ranks.world != saved.world and loop.ranks.rank == 0:
        say(f"checkpoint {saved.path.name} was written by {_ranks(saved.world)}; resuming with {_ranks(loop.ranks.world)}")
    load_checkpoint(loop, saved)
    return saved


def load_checkpoint(loop: Loop, saved: Saved) -> None:
    """Restore a loop from a checkpoint. All ranks must call it together.

    Raises:
        DataError: The model or the optimizer changed.
        CorruptError: The checkpoint is corrupt.
    """
    rank, world = loop.ranks.rank, loop.ranks.world
    restore(loop, *open_whole(saved).of_rank(rank, world))
    if rank >= saved.world:  # a new rank must not draw the same random numbers as rank 0
        seed_everything(mix(loop.live.seed, _NEW_RANK, saved.update, rank))


def newest_checkpoint(loop: Loop, run: Path, say: Callable[[str], None]) -> Saved | None:
    """Return the newest intact checkpoint, or None. Rank 0 verifies the files, so that all ranks use the same one."""
    newest: Saved | DataError | None = None
    if loop.ranks.rank == 0:
        try:
            newest = CheckpointFolder(run).newest_valid(say)
        except DataError as error:
            if loop.ranks.world == 1:
                raise
            newest = error
    newest = loop.ranks.broadcast(newest)
    if isinstance(newest, DataError):
        raise newest
    return newest


def _ranks(number: int) -> str:
    return f"{number} ranks" if number > 1 else "one process"


_SAMPLES_READ = 3
"""Number of samples in the fingerprint of a dataset."""


def run_facts(live: LiveJob) -> dict[str, Any]:
    """Return `code`, `data`, `seed` and `batch_size` of a live job. `code` is empty if the source cannot be read."""
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
    """Return a fingerprint of the data: length and a few samples of a map-style dataset. Iterable datasets are not read."""
    if live.num_samples is None:
        return "iterable"
    digest = hashlib.sha256(str(live.num_samples).encode())
    if live.pipeline.load_is_random:
        return f"{live.num_samples} samples"
    with kept_random_state():
        for number in range(_SAMPLES_READ):
            sample = live.pipeline.load(number * (live.num_samples - 1) // max(_SAMPLES_READ - 1, 1))
            digest.update(repr(content(sample)).encode())
    return digest.hexdigest()[:16]
