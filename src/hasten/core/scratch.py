"""The folders that a user allows for files on their way: nothing is written where nobody said so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hasten.core.errors import MachineError
from hasten.core.job import Job

SCRATCH_VARIABLE = "HASTEN_SCRATCH"
"""Holds the folders of `--scratch`, as PATH holds its own; trial processes inherit it."""


def allow_scratch(folders: Sequence[Path]) -> None:
    """Allow these folders, in this process and in those it starts.

    Raises:
        MachineError: One of them is no folder that can be written.
    """
    for folder in folders:
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise MachineError(f"--scratch {folder} is no folder that can be written. Make it, or name another one.")
    if folders:
        os.environ[SCRATCH_VARIABLE] = os.pathsep.join(str(folder.resolve()) for folder in folders)


def allowed_scratch(job: Job) -> tuple[Path, ...]:
    """The folders that are allowed: those of `--scratch`, then those of the job, each once, whether they exist or not."""
    named = [name for name in os.environ.get(SCRATCH_VARIABLE, "").split(os.pathsep) if name]
    return tuple(dict.fromkeys(Path(name).expanduser().resolve() for name in (*named, *job.scratch)))
