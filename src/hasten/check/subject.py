"""What is checked: a job or an unmodified script, with the settings of its processes in a folder that holds one version."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.check.repository import Repository
from hasten.core.errors import HastenError, TargetError
from hasten.tune.trials.trial import TrialSetting


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked.

    Attributes:
        target: The job, `package.module:Job` or `path/file.py:Job`, or the script.
        command: The script, or `-m` and a module, followed by its arguments; empty for a job.
        folder: The working folder.
        ranks: Number of processes that train together.
    """

    target: str
    command: tuple[str, ...] = ()
    folder: Path
    ranks: int = 1

    @property
    def name(self) -> str:
        """What is compared, as on a command line: samples of another name are of something else."""
        ranks = f" --ranks {self.ranks}" if self.ranks > 1 else ""
        return (shlex.join(self.command) if self.command else self.target) + ranks

    @property
    def file(self) -> Path | None:
        """The file of the job or script, relative to the working folder; None for a module."""
        where = self.command[0] if self.command else self.target.rpartition(":")[0]
        return None if where == "-m" or not where.endswith(".py") else Path(where)

    def within(self, repository: Repository) -> Subject:
        """Return the subject with its file named relative to the working folder, so that each version has its own.

        Raises:
            TargetError: The file is not in the repository.
        """
        if self.file is None or not self.file.is_absolute():
            return self
        file = self.file.resolve()
        if not file.is_relative_to(repository.root):
            raise TargetError(f"{file} is not in the repository {repository.root}, so it has no other version there.")
        name = os.path.relpath(file, self.folder.resolve())
        command = (name, *self.command[1:]) if self.command else ()
        target = name if self.command else f"{name}:{self.target.rpartition(':')[2]}"
        return replace(self, target=target, command=command)

    def setting(
        self, scratch: Path, label: str, say: Callable[[str], None], tree: Path | None = None, root: Path | None = None
    ) -> TrialSetting:
        """Return the settings of processes that run it.

        With `tree`, a version that was checked out from the repository `root`, it runs there, not in the working folder.

        Raises:
            TargetError: The version does not have the file.
        """
        cwd, environ = self.folder, dict(os.environ)
        if tree is not None and root is not None:
            cwd = tree / self.folder.resolve().relative_to(root)
            environ["PYTHONPATH"] = os.pathsep.join(import_paths(tree, root, sys.path, environ))
        if self.file is not None and not (cwd / self.file).is_file():
            raise TargetError(f"{label}: there is no file {self.file} in this version. Only what both have can be compared.")
        return TrialSetting(
            target=self.target, folder=scratch, progress=say, ranks=self.ranks, command=self.command, cwd=cwd,
            environ=environ, label=label,
        )  # fmt: skip


def import_paths(tree: Path, root: Path, present: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return PYTHONPATH for a version of a repository: what is imported from the repository comes from the version instead.

    Covers packages that are installed in editable mode, whose folder is on the present path.
    """
    given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = Path(sys.prefix).resolve()
    inside = installed.is_relative_to(root)  # a virtual environment in the repository holds packages, not a version of it
    own: list[str] = []
    for entry in [*given, *present]:
        path = Path(entry).resolve()
        if path.is_dir() and path.is_relative_to(root) and not (inside and path.is_relative_to(installed)):
            own.append(str(tree / path.relative_to(root)))
    return list(dict.fromkeys([*own, *(entry for entry in given if not Path(entry).resolve().is_relative_to(root))]))


def check_loaded(described: Mapping[str, Any], label: str, tree: Path, repository: Repository) -> None:
    """Check that a process runs the code of its own version.

    Raises:
        HastenError: It imported a file of the working tree, so both versions would run the same code.
    """
    for name in described["files"]:
        file = Path(name)
        if file.is_relative_to(tree) or not file.is_relative_to(repository.root):
            continue
        if repository.tracked(file):
            raise HastenError(
                f"{label}: {file.relative_to(repository.root)} was imported from the working tree, not from this version, "
                "so both would run the same code. Put the folder of its package on PYTHONPATH."
            )


def environment_differences(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[str]:
    """Return in words how the environments of two processes differ: Python, threads, packages."""
    words = [
        f"{name}: {base.get(name, 'unknown')} -> {candidate[name]}"
        for name in ("python", "threads")
        if base.get(name) != candidate[name]
    ]
    old, new = base.get("packages", {}), candidate.get("packages", {})
    return words + [
        f"{name}: {old.get(name, 'not imported')} -> {new.get(name, 'not imported')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
