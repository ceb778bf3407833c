"""Where a result comes from: commit, versions, and a fingerprint of the job's source."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import upshift
from upshift.core.job import Job

PACKAGES = ("torch", "numpy")


def commit_of(folder: Path) -> str | None:
    """The commit checked out in `folder`, with `+changes` where files differ from it; None outside a repository."""
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not found:
        return None
    return f"{found}+changes" if _git(folder, "status", "--porcelain") else found


def versions() -> dict[str, str]:
    """Versions of what decides about speed and numbers."""
    found = {"upshift": upshift.__version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # installed without metadata
            found[name] = "unknown"
    return found


def job_fingerprint(job: Job) -> str:
    """A short hash of the file that holds the job; a changed job makes older evidence worthless."""
    module = sys.modules.get(type(job).__module__)
    path = inspect.getsourcefile(module) if module else None
    content = Path(path).read_bytes() if path else repr(type(job)).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603  our own words
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
