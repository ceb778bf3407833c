"""Free the disk space that runs no longer need, mainly checkpoints. The results of a run are kept by default.

A run that can be resumed keeps its newest checkpoint. Active runs are not touched, and no run can start in a folder while it
is cleaned. Only files written by a run are removed; the user's own files stay.
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
"""The results of a run, removed only with `everything`."""
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """The files of a run to remove.

    Attributes:
        run: The run.
        paths: The files and folders to remove.
        num_bytes: Their total size.
        stays: The checkpoints to keep, with reasons; empty if none is kept.
    """

    run: Run
    paths: tuple[Path, ...]
    num_bytes: int
    stays: str = ""


def find_leftovers(
    runs: Sequence[Run], *, now_s: float, older_than_days: float = 0.0, keep_best: bool = False, everything: bool = False
) -> list[Leftovers]:
    """Return the files to remove of each run. Skip active runs, recently active runs, and runs with nothing to remove.

    Args:
        runs: The runs.
        now_s: The current time, in seconds since 1970.
        older_than_days: Minimum time in days since a run was last active.
        keep_best: Keep the best checkpoint.
        everything: Remove everything of a run, including its weights and its record.
    """
    result = []
    for run in runs:
        if run.state in ("running", "unreadable") or now_s - last_active(run.path) < older_than_days * _DAY_S:
            continue
        leftovers = _leftovers(run, keep_best=keep_best, everything=everything)
        if leftovers.paths:
            result.append(leftovers)
    return result


def remove(leftovers: Leftovers) -> bool:
    """Remove the files. Return False, and remove nothing, if a run has started in the folder in the meantime.

    Raises:
        OSError: A file cannot be removed.
    """
    run = leftovers.run.path
    had_lock = (run / LOCK).exists()
    with kept_from_running(run) as alone:
        if not alone:
            return False
        for path in leftovers.paths:
            if path.is_dir():
                (path / MANIFEST).unlink(missing_ok=True)  # first, so that a partly removed checkpoint is incomplete
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if not had_lock:
            (run / LOCK).unlink(missing_ok=True)
    if not (run / RECORD).exists() and not (run / METRICS).exists():
        with suppress(OSError):  # the folder still has files of the user
            run.rmdir()
    return True


def _leftovers(run: Run, *, keep_best: bool, everything: bool) -> Leftovers:
    folder = run.path
    paths = [path for name in _LASTING for path in folder.glob(f".{name}.*")]  # left by killed writers
    stays = ""
    if everything:
        paths += [path for name in _LASTING if (path := folder / name).exists()]
        paths += [*folder.glob(f"{LOCK.rpartition('.')[0]}.*"), *folder.glob(f"{RECORD}.unread")]
        inside = (folder / CHECKPOINTS, folder / STACKS)
        paths += [path for path in inside if path.is_dir() and not path.is_symlink()]
    else:
        removable, stays = _checkpoints(run, keep_best=keep_best)
        paths += removable
    return Leftovers(run=run, paths=tuple(paths), num_bytes=sum(map(_size, paths)), stays=stays)


def _checkpoints(run: Run, *, keep_best: bool) -> tuple[list[Path], str]:
    """Return the removable contents of the checkpoint folder, and which checkpoints are kept, with reasons."""
    folder = run.path / CHECKPOINTS
    if not folder.is_dir() or folder.is_symlink():
        return [], ""
    kept: dict[str, str] = {}
    saved, best = CheckpointFolder(run.path).all(), CheckpointFolder(run.path).best()
    if saved and run.state != "finished":
        kept[saved[-1].path.name] = "the newest, to resume from"
    if best is not None and keep_best:
        kept[best.path.name] = f"{kept[best.path.name]}, and the best" if best.path.name in kept else "the best"
    if not kept:
        return [folder], ""
    pointers = {LATEST: saved[-1].path.name if saved else "", BEST: best.path.name if best else ""}
    others = [path for path in sorted(folder.iterdir()) if path.name not in kept and pointers.get(path.name) not in kept]
    return others, "; ".join(f"{name}: {why}" for name, why in kept.items())


def _size(path: Path) -> int:
    return folder_bytes(path) if path.is_dir() else path.lstat().st_size
