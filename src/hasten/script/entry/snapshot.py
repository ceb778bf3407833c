"""Restore folders after a run that could not be isolated from them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 200_000
"""Number of files above which a folder is not restored."""
MOST_COPIED_BYTES, MOST_OF_ONE_BYTES = 1 << 30, 1 << 26
"""Limits of the copied bytes, in total and for one file."""
SOURCES = (".py", ".ipynb", ".md", ".toml", ".yaml", ".yml")
"""Types of files that are not restored: the user may edit them during the run, and Python's file functions are guarded."""

_OPEN: dict[tuple[str, ...], Snapshot] = {}
"""Shared snapshots by folders. With parallel runs, only the end of the last one shows what all of them have created."""


def walk(folder: str, leave: Sequence[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything in a folder, folders before their content. Hidden folders, which belong to tools, are not entered."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.path in leave:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # removed in the meantime
        yield entry.path, status
        if stat.S_ISDIR(status.st_mode) and not entry.name.startswith(".") and entry.name != "__pycache__":
            yield from walk(entry.path, leave)


class Snapshot:
    """The content of some folders, with copies of files that native code may change.

    Args:
        folders: The folders.
        keep: Hasten's own folders in them.

    Attributes:
        limits: Message about files that are not included; "" if there are none.
    """

    def __init__(self, folders: tuple[str, ...], keep: Sequence[Path]) -> None:
        self.limits, self._folders, self._users = "", folders, 0
        self._leave: set[str] = set()
        self.leave(keep)
        self._copies = Path(tempfile.mkdtemp(prefix="hasten-before-"))
        self._before = dict(self._walk())
        self._whole = len(self._before) <= MOST_FILES
        if not self._whole:
            self._before.clear()
            self.limits = f" They contain more than {MOST_FILES} files, so new files there remain as well."
        self._copied = self._copy()

    @classmethod
    def of(cls, folders: tuple[str, ...], keep: Sequence[Path]) -> Snapshot:
        """Return the snapshot of these folders: a new one, or the one that parallel runs share."""
        snapshot = _OPEN.get(folders)
        if snapshot is None:
            snapshot = _OPEN[folders] = cls(folders, keep)
        snapshot.leave(keep)
        snapshot._users += 1
        return snapshot

    def leave(self, keep: Sequence[Path]) -> None:
        """Ignore Hasten's own folders."""
        self._leave |= {os.path.realpath(folder) for folder in keep}

    def release(self) -> str:
        """End one run. After the last one, restore all folders and return a message about moved and unrestored files."""
        self._users -= 1
        if self._users:
            return ""
        del _OPEN[self._folders]
        try:
            message = self._restore() if self._whole else ""
        except OSError as error:
            return f"The folders could not be restored ({error}). Copies of the original files are in {self._copies}."
        shutil.rmtree(self._copies, ignore_errors=True)
        return message

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        leave, number = tuple(self._leave), 0
        for folder in self._folders:
            for entry in walk(folder, leave):
                yield entry
                number += 1
                if number > MOST_FILES:
                    return

    def _copy(self) -> dict[str, Path]:
        """Copy files, smallest first, up to the limits."""
        files = [(status.st_size, path) for path, status in self._before.items() if stat.S_ISREG(status.st_mode)]
        copied: dict[str, Path] = {}
        taken = 0
        for size, path in sorted(files):
            taken += size
            if size > MOST_OF_ONE_BYTES or taken > MOST_COPIED_BYTES:
                break
            if path.endswith(SOURCES):
                continue
            try:
                copy = self._copies / path.lstrip(os.sep)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copied[path] = Path(shutil.copy2(path, copy))
            except OSError:
                continue  # not readable
        return copied

    def _restore(self) -> str:
        folder = Path(tempfile.mkdtemp(prefix="hasten-moved-"))
        moved, left = self._take_away(folder)
        left += self._bring_back()
        sentences = [f"Files created by the run were moved to {folder}: {', '.join(moved)}."] if moved else []
        if left:
            sentences.append(f"Files changed or removed during the run and not restored: {', '.join(left)}.")
        if not moved:
            folder.rmdir()
        return " ".join(sentences)

    def _take_away(self, folder: Path) -> tuple[list[str], list[str]]:
        """Move new and changed files into a folder. Returns the moved files, and the changed ones without a copy."""
        moved, left = list[str](), list[str]()
        for path, status in dict(self._walk()).items():
            before = self._before.get(path)
            if before is not None and _same(before, status):
                continue
            if before is not None and path not in self._copied:
                left.append(path)
            elif os.path.lexists(path):  # otherwise its folder was moved already
                target = folder / path.lstrip(os.sep)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)
                moved.append(path)
        return moved, left

    def _bring_back(self) -> list[str]:
        """Restore missing files. Returns those without a copy."""
        left = []
        folders = {path: status for path, status in self._before.items() if stat.S_ISDIR(status.st_mode)}
        for path in self._before:
            if os.path.lexists(path):
                continue
            if path in folders:
                Path(path).mkdir(mode=stat.S_IMODE(folders[path].st_mode))
            elif path in self._copied:
                shutil.copy2(self._copied[path], path)
            else:
                left.append(path)
        for path, status in folders.items():
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return left


def _same(before: os.stat_result, now: os.stat_result) -> bool:
    """Return whether a path still has the same content. A folder counts as the same; its content is compared separately."""
    if stat.S_ISDIR(before.st_mode) and stat.S_ISDIR(now.st_mode):
        return True
    return (before.st_ino, before.st_size, before.st_mtime_ns, before.st_mode) == (
        now.st_ino, now.st_size, now.st_mtime_ns, now.st_mode,
    )  # fmt: skip
