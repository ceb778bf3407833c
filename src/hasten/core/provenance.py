"""Where a result comes from: commit, versions, and a fingerprint of the job's source."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hasten.core.job import Job
from hasten.core.version import __version__

PACKAGES = ("torch", "numpy")
_PATIENCE_S = 10.0


def commit_of(folder: Path) -> str | None:
    """The commit checked out in `folder`, with `+changes` where files differ from it; None outside a repository."""
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not found:
        return None
    return f"{found}+changes" if _git(folder, "status", "--porcelain") else found


def repository_of(folder: Path, *, patience_s: float = _PATIENCE_S) -> dict[str, str | bool]:
    """`commit`, and `changed`: whether files that git follows differ from it. Changes nothing, not even git's own index.

    Args:
        folder: Somewhere in the repository.
        patience_s: Seconds that git may take for each answer.

    Returns:
        Without `changed` where git took too long to tell; empty outside a repository, and where there is no git.
    """
    commit = _git(folder, "rev-parse", "--short=12", "HEAD", patience_s=patience_s)
    if not commit:
        return {}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", patience_s=patience_s)
    return {"commit": commit} if changes is None else {"commit": commit, "changed": bool(changes)}


def versions() -> dict[str, str]:
    """Versions of what decides about speed and numbers."""
    found = {"hasten": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # installed without metadata
            found[name] = "unknown"
    return found


def job_folder(job: Job) -> Path | None:
    """The folder of the file that holds the job; None where it was typed, not read from a file."""
    try:
        return Path(inspect.getfile(type(job))).resolve().parent
    except (TypeError, OSError):
        return None


def job_fingerprint(job: Job) -> str:
    """A short hash of the file that holds the job; a changed job makes older evidence worthless."""
    module = sys.modules.get(type(job).__module__)
    path = inspect.getsourcefile(module) if module else None
    content = Path(path).read_bytes() if path else repr(type(job)).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _git(folder: Path, *arguments: str, patience_s: float = _PATIENCE_S) -> str | None:
    """What git says; None where it cannot, or takes too long."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)  # noqa: S603  our own words
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
