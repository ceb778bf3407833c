"""Redirect a run's writes to the user's files, if the run cannot have its own view of the file system (`apart`).

Replaced files go to a scratch folder and are found there. This covers all checkpoints of `torch.save`, and files below the
working folder that existed before the run and are opened for writing, renamed or removed by Python's own functions. New
files are created where the script wants them: they may be caches that the next run reads, their folders may be renamed, and
native code may access them. Folders whose names begin with a dot contain the state of tools and are not redirected.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from hasten.script.patches import Patches

MARGIN_S = 0.1
"""Seconds by which the clock of a file system may lag behind."""
MAX_COPY_BYTES = 1 << 30
"""Size above which a file is changed in place, because a copy would cost more than it saves."""

_LOOKUPS = ("stat", "lstat", "access", "chmod", "utime", "truncate")
_WRITES = frozenset("wax+")

Function = Callable[..., Any]


class Overlay:
    """Copies that represent the files this run has written.

    Args:
        folder: The scratch folder.
        home: The folder whose files are protected; the working folder by default.
    """

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self._folder = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118 - all paths here are strings, as in scripts
        self._home = os.path.join(os.path.realpath(home or Path.cwd()), "")  # noqa: PTH118 - as above
        self._since = time.time() - MARGIN_S
        self._moved: dict[str, str] = {}
        self._names: set[str] = set()
        self._removed: set[str] = set()
        self._made = 0

    def install(self, patches: Patches) -> None:
        """Wrap Python's file functions."""
        put = patches.put
        for owner in (builtins, io):
            put(owner, "open", self._opening)
        put(os, "open", self._opening_low)
        for name in _LOOKUPS:
            put(os, name, self._looking)
        for name in ("remove", "unlink"):
            put(os, name, self._removing)
        for name in ("rename", "replace"):
            put(os, name, self._renaming)
        put(os, "link", functools.partial(self._linking, symbolic=False))
        put(os, "symlink", functools.partial(self._linking, symbolic=True))
        put(os, "listdir", self._listing)
        put(os, "scandir", self._scanning)

    def find(self, path: Any) -> Any:
        """Return the copy of a path, or the path itself if there is none."""
        name = _text(path) if self._moved else None
        if name is None or os.path.basename(name) not in self._names:  # noqa: PTH119 - as above
            return path
        return self._moved.get(_key(name), path)

    def claim(self, path: Any, content_of: str | None = None) -> str:
        """Return the copy of a path. Create it if necessary, with the content of another file if given."""
        key = _key(os.fspath(path))
        known = self._moved.get(key)
        if known is None or content_of is not None:
            self._made += 1
            known = f"{self._folder}written-{self._made}"
            if content_of is not None:
                shutil.copyfile(content_of, known)
            self._moved[key] = known
            self._names.add(os.path.basename(key))  # noqa: PTH119 - as above
        return known

    def protects(self, key: str) -> bool:
        """Return whether a file must be protected: it is in the working folder and unchanged since the run began."""
        if not key.startswith(self._home) or key.startswith(self._folder):
            return False
        if any(part.startswith(".") for part in Path(key[len(self._home) :]).parts[:-1]):
            return False
        try:
            status = os.lstat(key)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_ctime < self._since and status.st_size <= MAX_COPY_BYTES

    def opened(self, path: Any, mode: str) -> Any:
        """Return the path to open instead of a path, in a mode of `open`."""
        target = self.find(path)
        name = _text(path) if target is path and _WRITES & set(mode) else None
        if name is None:
            return target
        key = _key(name)
        if not self.protects(key) or ("x" in mode and key not in self._removed):
            return path
        try:
            return self.claim(key, None if set("wx") & set(mode) else key)
        except OSError:
            return path  # no space for a copy; the script continues with the file itself

    def _opening(self, original: Function) -> Function:
        @functools.wraps(original)
        def open_seam(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            own = isinstance(mode, str) and kwargs.get("opener") is None
            return original(self.opened(file, mode) if own else file, mode, *args, **kwargs)

        return open_seam

    def _opening_low(self, original: Function) -> Function:
        @functools.wraps(original)
        def open_low_seam(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None:
                mode = "x" if flags & os.O_EXCL else "w" if flags & os.O_TRUNC else "r+"
                path = self.opened(path, mode if flags & (os.O_WRONLY | os.O_RDWR) else "r")
            return original(path, flags, *args, **kwargs)

        return open_low_seam

    def _looking(self, original: Function) -> Function:
        @functools.wraps(original)
        def looking_seam(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self.find(path) if kwargs.get("dir_fd") is None else path, *args, **kwargs)

        return looking_seam

    def _removing(self, original: Function) -> Function:
        @functools.wraps(original)
        def removing_seam(path: Any, **kwargs: Any) -> Any:
            name = _text(path)
            if name is None or kwargs.get("dir_fd") is not None:
                return original(path, **kwargs)
            key = _key(name)
            if key in self._moved:
                return original(self._moved.pop(key))
            if self.protects(key):
                self._removed.add(key)  # the file stays, and may be removed again
                return None
            return original(path, **kwargs)

        return removing_seam

    def _renaming(self, original: Function) -> Function:
        @functools.wraps(original)
        def renaming_seam(src: Any, dst: Any, **kwargs: Any) -> Any:
            source, target = _text(src), _text(dst)
            if source is None or target is None or any(value is not None for value in kwargs.values()):
                return original(src, dst, **kwargs)
            source, target = _key(source), _key(target)
            if source in self._moved and source != target:
                original(self._moved[source], self.claim(target))
                del self._moved[source]
            elif self.protects(source):
                self.claim(target, source)
            elif os.path.isfile(source) and (target in self._moved or self.protects(target)):  # noqa: PTH113 - as above
                shutil.move(source, self.claim(target))
            else:
                return original(src, dst)
            return None

        return renaming_seam

    def _linking(self, original: Function, *, symbolic: bool) -> Function:
        """Redirect a link to a redirected file."""

        @functools.wraps(original)
        def linking_seam(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            source, target = _text(src), _text(dst)
            if source is None or target is None or not self._moved:
                return original(src, dst, *args, **kwargs)
            whole = os.path.join(os.path.dirname(target), source) if symbolic else source  # noqa: PTH118, PTH120 - as above
            known = self._moved.get(_key(whole))
            if known is None:
                return original(src, dst, *args, **kwargs)
            self.claim(target, known)
            return None

        return linking_seam

    def _listing(self, original: Function) -> Function:
        @functools.wraps(original)
        def listing_seam(path: Any = ".") -> Any:
            names = original(path)
            return names + [name for name in self._names_in(path) if name not in names]

        return listing_seam

    def _scanning(self, original: Function) -> Function:
        @functools.wraps(original)
        def scanning_seam(path: Any = ".") -> Any:
            names = self._names_in(path)
            return Scan(original(path), path, names, self.find) if names else original(path)

        return scanning_seam

    def _names_in(self, path: Any) -> list[str]:
        """Return the names of redirected files in a folder."""
        name = _text("." if path is None else path) if self._moved and not isinstance(path, bytes) else None
        if name is None:
            return []
        folder = os.path.realpath(name)
        return [os.path.basename(key) for key in self._moved if os.path.dirname(key) == folder]  # noqa: PTH119, PTH120 - as above


class Scan:
    """The entries of `os.scandir`, followed by the redirected files."""

    def __init__(self, entries: Any, path: Any, names: list[str], find: Callable[[Any], Any]) -> None:
        self._entries, self._path, self._names, self._find = entries, path, names, find
        self._all = self._each()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        self._entries.close()

    def _each(self) -> Iterator[Any]:
        left = set(self._names)
        for entry in self._entries:
            left.discard(entry.name)
            yield entry
        for name in self._names:
            if name in left:
                path = os.path.join(os.fspath(self._path), name)  # noqa: PTH118 - same form as the entries of scandir
                yield Entry(name, path, str(self._find(path)))


class Entry:
    """A replacement for the `os.DirEntry` of a regular file."""

    def __init__(self, name: str, path: str, stand_in: str) -> None:
        self.name, self.path, self._stand_in = name, path, stand_in

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return True."""
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return False."""
        return False

    def is_symlink(self) -> bool:
        """Return False."""
        return False

    def inode(self) -> int:
        """Return the inode number of the file."""
        return self.stat().st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of the file."""
        return os.stat(self._stand_in)  # noqa: PTH116 - a string, as above


def _text(path: Any) -> str | None:
    """Return a path as text; None for anything else, such as a file descriptor."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    try:
        return os.fsdecode(path)
    except (TypeError, ValueError):
        return None


def _key(name: str | bytes) -> str:
    """Return a unique name of a file, with links to its folder resolved."""
    folder, base = os.path.split(os.path.abspath(os.fsdecode(name)))  # noqa: PTH100 - as above
    return os.path.join(os.path.realpath(folder), base)  # noqa: PTH118 - as above
