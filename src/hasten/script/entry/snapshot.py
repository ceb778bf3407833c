"""Put folders back as they were before a run, where the run could not be kept apart from them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 200_000
MOST_COPIED_BYTES, MOST_OF_ONE_BYTES = 1 << 30, 1 << 26
SOURCES = (".py", ".ipynb", ".md", ".toml", ".yaml", ".yml")
"""A user may edit these meanwhile, and scripts write them through Python, which is guarded: they are not put back."""

_OPEN: dict[tuple[str, ...], Snapshot] = {}
"""By folders: of runs that go on side by side, only the last one to end can tell what all of them made."""


def walk(folder: str, leave: Sequence[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a folder, each folder before what is in it; hidden ones, which hold the state of tools, as a whole."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.path in leave:
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        yield entry.path, found
        if stat.S_ISDIR(found.st_mode) and not entry.name.startswith(".") and entry.name != "__pycache__":
            yield from walk(entry.path, leave)


class Snapshot:
    """What is in some folders, with copies of what code that is not Python may change.

    Args:
        folders: Which.
        keep: Folders in them that are ours.

    Attributes:
        limits: What could not be taken in, in words.
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
            self.limits = f" They hold more than {MOST_FILES} files, so what it makes there stays too."
        self._copied = self._copy()

    @classmethod
    def of(cls, folders: tuple[str, ...], keep: Sequence[Path]) -> Snapshot:
        """The snapshot of these folders: a new one, or that of the runs that are going on."""
        found = _OPEN.get(folders)
        if found is None:
            found = _OPEN[folders] = cls(folders, keep)
        found.leave(keep)
        found._users += 1
        return found

    def leave(self, keep: Sequence[Path]) -> None:
        """Look past folders of ours."""
        self._leave |= {os.path.realpath(folder) for folder in keep}

    def release(self) -> str:
        """One run has ended. Puts everything back if it was the last one, and returns in words what was moved or is left."""
        self._users -= 1
        if self._users:
            return ""
        del _OPEN[self._folders]
        try:
            words = self._restore() if self._whole else ""
        except OSError as error:
            return f"The folders could not be put back ({error}). Copies of the files as they were are in {self._copies}."
        shutil.rmtree(self._copies, ignore_errors=True)
        return words

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        leave, number = tuple(self._leave), 0
        for folder in self._folders:
            for entry in walk(folder, leave):
                yield entry
                number += 1
                if number > MOST_FILES:
                    return

    def _copy(self) -> dict[str, Path]:
        """Copies of files, the smallest first, as far as they go."""
        files = [(found.st_size, path) for path, found in self._before.items() if stat.S_ISREG(found.st_mode)]
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
                continue  # may not be read
        return copied

    def _restore(self) -> str:
        kept = Path(tempfile.mkdtemp(prefix="hasten-moved-"))
        moved, left = self._take_away(kept)
        left += self._bring_back()
        words = [f"What the run had made was moved to {kept}: {', '.join(moved)}."] if moved else []
        if left:
            words.append(f"Changed or removed meanwhile, and left so: {', '.join(left)}.")
        if not moved:
            kept.rmdir()
        return " ".join(words)

    def _take_away(self, kept: Path) -> tuple[list[str], list[str]]:
        """Move what is new or changed into a folder. Returns what was moved, and what is changed and has no copy."""
        moved, left = list[str](), list[str]()
        for path, found in dict(self._walk()).items():
            before = self._before.get(path)
            if before is not None and _same(before, found):
                continue
            if before is not None and path not in self._copied:
                left.append(path)
            elif os.path.lexists(path):  # else its folder was moved
                target = kept / path.lstrip(os.sep)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)
                moved.append(path)
        return moved, left

    def _bring_back(self) -> list[str]:
        """Put back what is missing. Returns what has no copy."""
        left = []
        folders = {path: found for path, found in self._before.items() if stat.S_ISDIR(found.st_mode)}
        for path in self._before:
            if os.path.lexists(path):
                continue
            if path in folders:
                Path(path).mkdir(mode=stat.S_IMODE(folders[path].st_mode))
            elif path in self._copied:
                shutil.copy2(self._copied[path], path)
            else:
                left.append(path)
        for path, found in folders.items():
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        return left


def _same(before: os.stat_result, now: os.stat_result) -> bool:
    """Whether a path leads to what it led to; a folder changes with what is in it."""
    if stat.S_ISDIR(before.st_mode) and stat.S_ISDIR(now.st_mode):
        return True
    return (before.st_ino, before.st_size, before.st_mtime_ns, before.st_mode) == (
        now.st_ino, now.st_size, now.st_mtime_ns, now.st_mode,
    )  # fmt: skip
