"""Real git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """Run git without the settings of this machine's user."""
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z"}
    names = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "A"), ("EMAIL", "a@b.c"))
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **own, **names},
    )
    return done.stdout.strip()


def new_repository(folder: Path, **files: str) -> Path:
    """Make a repository on the branch `main` with one commit of these files; `__` in a name means a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "one", **files)
    return folder


def commit(folder: Path, message: str, **files: str) -> str:
    """Write files, commit everything, and return the commit."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def worktrees(folder: Path) -> int:
    """Return the number of worktrees, the repository's own among them."""
    return git(folder, "worktree", "list", "--porcelain").count("worktree ")
