"""Check out the commits of a comparison into temporary worktrees, which are always removed again.

A commit does not hold everything that a training needs. Files that git ignores (data, compiled extensions) are linked into
both worktrees. Changes of the working tree, untracked files among them, belong to the candidate and are copied.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hasten.core.errors import HastenError

PREFIX = "hasten-check-"
OWN_FOLDER = ".hasten"
"""Folder of Hasten's own files in the repository. A change in it does not change the training."""
NOT_SHARED = frozenset({
    "__pycache__", ".git", ".venv", "venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", "hasten-out", OWN_FOLDER
})  # fmt: skip
DEFAULT_BRANCHES = ("origin/HEAD", "main", "master", "origin/main", "origin/master")
LARGE_BYTES = 16 << 20
"""Untracked files above this size are data: they are linked into both worktrees instead of copied into the candidate's."""
DEPENDENCIES = ("pyproject.toml", "requirements*", "constraints*", "setup.py", "setup.cfg", "*.lock", "environment*.y*ml")
"""Files that name the packages of a project."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """One side of a comparison.

    Attributes:
        commit: The commit's full hash; None outside of a repository.
        name: What a message calls it, such as `3f2a1bc09d41 (merge base with main)`.
        changed: Whether the changes of the working tree belong to it.
    """

    commit: str | None
    name: str
    changed: bool = False


class Repository:
    """The git repository that holds a folder.

    Raises:
        HastenError: It is not in a git repository, git is missing, or there is no commit yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.root = Path(self._git("rev-parse", "--show-toplevel")).resolve()
        except FileNotFoundError as error:
            raise HastenError("The program git was not found. Install it, or use --baseline FILE.") from error
        except HastenError as error:
            raise HastenError(
                f"{folder} is not in a git repository ({error}). Use --baseline FILE to check without one."
            ) from error
        self._folder = self.root
        if self._try("rev-parse", "--verify", "--quiet", "HEAD^{commit}") is None:
            raise HastenError(f"The repository {self.root} has no commit yet: there is nothing to compare with.")

    def candidate(self) -> Version:
        """Return the present commit, with the changes of the working tree."""
        head, changed = self._git("rev-parse", "HEAD"), bool(self._changes())
        name = f"{head[:12]} with the changes of the working tree" if changed else head[:12]
        return Version(commit=head, name=name, changed=changed)

    def base(self, revision: str | None) -> Version:
        """Return what to compare with: the merge base with a branch, or a commit or tag itself.

        Without a revision: the merge base with the default branch; on that branch itself, the last commit if the working
        tree has changes, and otherwise its parent.

        Raises:
            HastenError: There is no such revision, no merge base, or no parent.
        """
        if revision is not None:
            if not self._try("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"):
                raise HastenError(
                    f"{revision!r} is not a revision of {self.root}. Give a branch, a tag or a commit.{self._shallow()}"
                )
            reference = self._try("rev-parse", "--symbolic-full-name", revision) or ""
            if reference.startswith(("refs/heads/", "refs/remotes/")) and revision not in ("HEAD", "@"):
                return self._merge_base(revision)
            return self._version(revision, revision)
        head = self._git("rev-parse", "HEAD")
        for branch in DEFAULT_BRANCHES:
            if self._try("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}"):
                base = self._merge_base(branch)
                if base.commit != head:
                    return base
                break
        if self._changes():
            return self._version("HEAD", "the last commit")
        if not self._try("rev-parse", "--verify", "--quiet", "HEAD^"):
            raise HastenError(f"{head[:12]} has no parent to compare with. Name a revision: --against REV.{self._shallow()}")
        return self._version("HEAD^", "its parent")

    def has(self, commit: str) -> bool:
        """Return whether the repository has a commit."""
        return self._try("cat-file", "-e", f"{commit}^{{commit}}") is not None

    def changed_dependencies(self, base: Version, candidate: Version) -> list[str]:
        """Return files that name the project's packages and differ between two versions."""
        commits = [str(version.commit) for version in ((base,) if candidate.changed else (base, candidate))]
        patterns = [f":(glob)**/{name}" for name in DEPENDENCIES]
        return self._names("diff", "--name-only", "-z", *commits, "--", *patterns)

    def tracked(self, path: Path) -> bool:
        """Return whether git tracks a file of the working tree."""
        return bool(self._names("ls-files", "-z", "--", str(path)))

    @contextmanager
    def checked_out(self, versions: Sequence[Version]) -> Iterator[list[Path]]:
        """Check versions out into new worktrees. Yields their folders, and removes them at the end.

        Raises:
            HastenError: A worktree could not be made.
        """
        self._remove_abandoned()
        holder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        lock = os.open(holder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield [
                self._check_out(version, holder / f"{letter}-{str(version.commit)[:12]}")
                for letter, version in zip("ab", versions, strict=False)
            ]
        finally:
            self._remove(holder)
            os.close(lock)

    def _check_out(self, version: Version, folder: Path) -> Path:
        try:
            self._git(
                "-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach", str(folder), str(version.commit)
            )
            if version.changed:
                self._copy_changes(folder)
            for name in self._shared():
                link = folder / name
                if link.is_dir() and not any(link.iterdir()):  # a submodule
                    link.rmdir()
                if not os.path.lexists(link) and link.parent.is_dir():
                    link.symlink_to(self.root / name)
        except (HastenError, OSError) as error:
            why = str(error).rstrip(".")
            raise HastenError(
                f"Cannot check out {version.name} to {folder}: {why}. It needs the disk space of one more copy of the files "
                "in git; the variable TMPDIR chooses another folder."
            ) from error
        return folder

    def _copy_changes(self, folder: Path) -> None:
        """Copy what differs from the last commit in the working tree: changed, new and deleted files."""
        for name in self._changes():
            source, copy = self.root / name, folder / name
            if os.path.lexists(source):
                copy.parent.mkdir(parents=True, exist_ok=True)
                if not source.is_dir():
                    copy.unlink(missing_ok=True)
                    shutil.copy2(source, copy, follow_symlinks=False)
            else:
                copy.unlink(missing_ok=True)

    def _changes(self) -> list[str]:
        """Return the files that differ from the last commit, untracked code among them."""
        names = self._names(
            "diff", "--name-only", "--no-renames", "--ignore-submodules", "-z", "HEAD", "--", ".", f":(exclude){OWN_FOLDER}"
        )
        return [*names, *self._untracked()[0]]

    def _untracked(self) -> tuple[list[str], list[str]]:
        """Return untracked files that may be code, and untracked data: large files, and folders without Python files."""
        listing = ("ls-files", "--others", "--exclude-standard", "-z")
        code, data = list[str](), list[str]()
        python = self._names(*listing, "--", "*.py")
        for name in _possible(self._names(*listing, "--directory", "--no-empty-directory")):
            if not name.endswith("/"):
                file = self.root / name
                (data if not file.is_symlink() and file.stat().st_size > LARGE_BYTES else code).append(name)
            elif any(file.startswith(name) for file in python):
                code += _possible(self._names(*listing, "--", f":(literal){name}"))
            else:
                data.append(name)
        return code, data

    def _shared(self) -> list[str]:
        """Return files that a training may need and that belong to no version: ignored ones, data, submodules."""
        ignored = self._names("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        stages = self._names("ls-files", "--stage", "-z")
        submodules = [line.partition("\t")[2] for line in stages if line.startswith("160000")]
        names = [name.rstrip("/") for name in (*_possible(ignored), *self._untracked()[1], *submodules)]
        return [name for name in names if not name.endswith(".pyc") and not (self.root / name / "pyvenv.cfg").exists()]

    def _merge_base(self, branch: str) -> Version:
        found = self._try("merge-base", "HEAD", branch)
        if not found:
            raise HastenError(f"HEAD and {branch} have no common commit.{self._shallow()}")
        return self._version(found, f"merge base with {branch}")

    def _version(self, revision: str, words: str) -> Version:
        commit = self._git("rev-parse", f"{revision}^{{commit}}")
        return Version(commit=commit, name=commit[:12] if commit.startswith(words) else f"{commit[:12]} ({words})")

    def _shallow(self) -> str:
        if self._try("rev-parse", "--is-shallow-repository") != "true":
            return ""
        return " This clone is shallow: fetch the history first (in GitHub's checkout action: fetch-depth: 0)."

    def _remove(self, holder: Path) -> None:
        for folder in holder.glob("?-*"):
            self._try("worktree", "remove", "--force", "--force", str(folder))
        shutil.rmtree(holder, ignore_errors=True)
        self._try("worktree", "prune")

    def _remove_abandoned(self) -> None:
        """Remove worktrees of checks that were killed. The lock of a living one is held."""
        lines = self._git("worktree", "list", "--porcelain").splitlines()
        folders = {Path(line.removeprefix("worktree ")).parent for line in lines if line.startswith("worktree ")}
        for holder in (folder for folder in folders if folder.name.startswith(PREFIX)):
            try:
                lock = os.open(holder / "lock", os.O_RDWR)
            except FileNotFoundError:
                self._remove(holder)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove(holder)
            except BlockingIOError:
                pass  # in use
            finally:
                os.close(lock)

    def _names(self, *arguments: str) -> list[str]:
        return [name for name in self._git(*arguments).split("\0") if name]

    def _try(self, *arguments: str) -> str | None:
        """Return git's output, or None if it fails."""
        try:
            return self._git(*arguments)
        except HastenError:
            return None

    def _git(self, *arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(self._folder), *arguments]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # set in a hook
        done = subprocess.run(  # noqa: S603  git, with names from git or from the user
            command, capture_output=True, encoding="utf-8", errors="surrogateescape", check=False,
            env={**environ, "LC_ALL": "C"},
        )  # fmt: skip
        if done.returncode:
            lines = [line.removeprefix("fatal: ").removeprefix("error: ") for line in done.stderr.strip().splitlines()]
            raise HastenError("; ".join(lines[-2:]) or f"git {arguments[0]} exited with {done.returncode}")
        return done.stdout.strip("\n")


def _possible(names: Sequence[str]) -> list[str]:
    """Return the names without caches, environments and Hasten's own files."""
    return [name for name in names if not NOT_SHARED & set(Path(name).parts)]
