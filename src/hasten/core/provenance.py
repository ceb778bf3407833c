"""Record where a result comes from: commit, versions, and a fingerprint of the job's source."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import torch

from hasten.core.job import Job
from hasten.core.user_code import is_user_file
from hasten.core.version import __version__

PACKAGES = ("torch", "numpy")
_PATIENCE_S = 10.0


def commit_of(folder: Path) -> str | None:
    """Return the commit checked out in `folder`, with `+changes` if files differ from it. None outside a repository."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain") else commit


def repository_of(folder: Path, *, patience_s: float = _PATIENCE_S) -> dict[str, str | bool]:
    """Return `commit`, and `changed`: whether tracked files differ from it. Changes nothing, not even git's index.

    Args:
        folder: A folder in the repository.
        patience_s: Time limit in seconds for each git command.

    Returns:
        `commit` and `changed`; without `changed` if git took too long; empty outside a repository or without git.
    """
    commit = _git(folder, "rev-parse", "--short=12", "HEAD", patience_s=patience_s)
    if not commit:
        return {}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", patience_s=patience_s)
    return {"commit": commit} if changes is None else {"commit": commit, "changed": bool(changes)}


def versions() -> dict[str, str]:
    """Return the versions of the software that affects speed and numbers."""
    known = {"hasten": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            known[name] = version(name)
        except PackageNotFoundError:  # installed without metadata
            known[name] = "unknown"
    return known


def process_environment() -> dict[str, Any]:
    """Return what affects the speed of this process beside its code, and the code that it has loaded.

    Returns:
        `python`, `threads` (of an operator in torch), `packages` (imported distribution -> version) and `files` (modules of
        the user that are loaded).
    """
    modules = list(sys.modules.items())
    names = packages_distributions()
    loaded = {owner for name, _ in modules if "." not in name for owner in names.get(name, ())}
    files = {file for _, module in modules if isinstance(file := getattr(module, "__file__", None), str)}
    return {
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "packages": {name: version(name) for name in sorted(loaded)},
        "files": sorted(str(Path(file).absolute()) for file in files if is_user_file(file)),
    }


def job_folder(job: Job) -> Path | None:
    """Return the folder of the job's file, or None if the job was defined interactively."""
    try:
        return Path(inspect.getfile(type(job))).resolve().parent
    except (TypeError, OSError):
        return None


def job_fingerprint(job: Job) -> str:
    """Return a short hash of the job's file. Evidence is not valid for a changed job."""
    module = sys.modules.get(type(job).__module__)
    path = inspect.getsourcefile(module) if module else None
    content = Path(path).read_bytes() if path else repr(type(job)).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _git(folder: Path, *arguments: str, patience_s: float = _PATIENCE_S) -> str | None:
    """Return git's output, or None if it fails or takes too long."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)  # noqa: S603  fixed arguments
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
