"""Take back the room that runs no longer need: their checkpoints first of all, never what a run came to.

A run that may be taken up again keeps its newest checkpoint. A run at work is left alone, and none can begin in a folder
while it is cleaned. Only files that a run makes are removed; what a person put beside them stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hasten.train.checkpoints.folder import BEST, CHECKPOINTS, LATEST, MANIFEST, CheckpointFolder
from hasten.train.guards.incidents import INCIDENTS
from hasten.train.guards.run_guards import STACKS
from hasten.train.periodic import METRICS, WEIGHTS
from hasten.train.records.lock import LOCK, kept_from_running
from hasten.train.records.log import LOG
from hasten.train.records.record import PLAN, RECORD
from hasten.train.records.runs import Run, folder_bytes, last_active

_LASTING = (RECORD, METRICS, WEIGHTS, PLAN, LOG, INCIDENTS)
"""What a run came to, and how: removed only when everything is to go."""
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What of a run would go.

    Attributes:
        run: The run.
        paths: Files and folders.
        num_bytes: All of them.
        stays: What stays of its checkpoints, and why, in words; empty where all of them go.
    """

    run: Run
    paths: tuple[Path, ...]
    num_bytes: int
    stays: str = ""


def find_leftovers(
    runs: Sequence[Run], *, now_s: float, older_than_days: float = 0.0, keep_best: bool = False, everything: bool = False
) -> list[Leftovers]:
    """What would go, without a run that is at work, was active lately, or has nothing to lose.

    Args:
        runs: The runs.
        now_s: The time, in seconds since 1970.
        older_than_days: How long ago a run must have given its last sign of life.
        keep_best: Leave the best checkpoint.
        everything: All of the run, its weights and its record too.
    """
    found = []
    for run in runs:
        if run.state in ("running", "unreadable") or now_s - last_active(run.path) < older_than_days * _DAY_S:
            continue
        leftovers = _leftovers(run, keep_best=keep_best, everything=everything)
        if leftovers.paths:
            found.append(leftovers)
    return found


def remove(leftovers: Leftovers) -> bool:
    """Remove them; False where a run has begun in the folder meanwhile, and nothing is touched.

    Raises:
        OSError: Something cannot be removed.
    """
    run = leftovers.run.path
    had_lock = (run / LOCK).exists()
    with kept_from_running(run) as alone:
        if not alone:
            return False
        for path in leftovers.paths:
            if path.is_dir():
                (path / MANIFEST).unlink(missing_ok=True)  # first: half of a checkpoint must not look like one
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if not had_lock:
            (run / LOCK).unlink(missing_ok=True)
    if not (run / RECORD).exists() and not (run / METRICS).exists():
        with suppress(OSError):  # somebody's own files are left in it
            run.rmdir()
    return True


def _leftovers(run: Run, *, keep_best: bool, everything: bool) -> Leftovers:
    folder = run.path
    paths = [path for name in _LASTING for path in folder.glob(f".{name}.*")]  # of writers that were killed
    stays = ""
    if everything:
        paths += [path for name in _LASTING if (path := folder / name).exists()]
        paths += [*folder.glob(f"{LOCK.rpartition('.')[0]}.*"), *folder.glob(f"{RECORD}.unread")]
        inside = (folder / CHECKPOINTS, folder / STACKS)
        paths += [path for path in inside if path.is_dir() and not path.is_symlink()]
    else:
        old, stays = _checkpoints(run, keep_best=keep_best)
        paths += old
    return Leftovers(run=run, paths=tuple(paths), num_bytes=sum(map(_size, paths)), stays=stays)


def _checkpoints(run: Run, *, keep_best: bool) -> tuple[list[Path], str]:
    """The parts of the folder of checkpoints that may go, and what stays of it in words."""
    folder = run.path / CHECKPOINTS
    if not folder.is_dir() or folder.is_symlink():
        return [], ""
    kept: dict[str, str] = {}
    saved, best = CheckpointFolder(run.path).all(), CheckpointFolder(run.path).best()
    if saved and run.state != "finished":
        kept[saved[-1].path.name] = "the newest, to go on from"
    if best is not None and keep_best:
        kept[best.path.name] = f"{kept[best.path.name]}, and the best" if best.path.name in kept else "the best"
    if not kept:
        return [folder], ""
    pointers = {LATEST: saved[-1].path.name if saved else "", BEST: best.path.name if best else ""}
    goes = [path for path in sorted(folder.iterdir()) if path.name not in kept and pointers.get(path.name) not in kept]
    return goes, "; ".join(f"{name}: {why}" for name, why in kept.items())


def _size(path: Path) -> int:
    return folder_bytes(path) if path.is_dir() else path.lstat().st_size
