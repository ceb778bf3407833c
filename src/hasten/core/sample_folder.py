"""Where prepared samples of a job lie on disk: a temporary folder, or one that is kept from run to run.

Set HASTEN_CACHE_DIR to keep it: then its name is a fingerprint of the source of the job and of the dataset, of the
dataset's length, and of what a few samples hold, so that a changed job never reads what an old one wrote.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hasten.core.keeping import content
from hasten.core.live import LiveJob
from hasten.core.seams import Undo

FOLDER_VARIABLE = "HASTEN_CACHE_DIR"
TRIALS_VARIABLE = "HASTEN_TRIAL_STORES"
"""The same for the trials of one tuning, which need not make a whole store each; set by those who start them."""
_FORMAT = 1


def kept_folder(live: LiveJob, few: list[Any], kind: str) -> tuple[Path, Undo]:
    """A folder for a job's samples, and how to remove it: at once when undone, and at the latest when this process ends.

    Args:
        live: The live job.
        few: A few of its samples, freshly prepared: they tell of changes that the source of the job does not.
        kind: Begins its name: `samples`, `store`.
    """
    kept = os.environ.get(FOLDER_VARIABLE) or os.environ.get(TRIALS_VARIABLE if kind == "store" else "")
    if kept and (name := fingerprint(live, few)):
        folder = Path(kept).expanduser() / f"{kind}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder, lambda: None
    folder, owner = Path(tempfile.mkdtemp(prefix=f"hasten-{kind}-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a fork of it ends
            shutil.rmtree(folder, ignore_errors=True)
            atexit.unregister(remove)

    atexit.register(remove)
    return folder, remove


def fingerprint(live: LiveJob, few: list[Any]) -> str:
    """Name what a kept sample depends on, as 24 hexadecimal digits; empty where the source cannot be read.

    Args:
        live: The live job.
        few: A few of its samples, freshly prepared: they tell of changes that the source of the job does not.
    """
    kinds = [kind for owner in (live.job, live.dataset) for kind in type(owner).__mro__]
    files = {}
    for kind in kinds:
        if kind.__module__.partition(".")[0] in ("builtins", "abc", "typing", "torch"):
            continue
        try:
            files[f"{kind.__module__}.{kind.__qualname__}"] = Path(inspect.getfile(kind)).read_bytes()
        except (TypeError, OSError):  # written at a prompt: nothing tells one version of it from another
            return ""
    digest = hashlib.sha256(repr((_FORMAT, live.num_samples, torch.__version__, np.__version__)).encode())
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    digest.update(repr([content(sample) for sample in few]).encode())
    return digest.hexdigest()[:24]
