"""Where a run cannot have files of its own (`apart`), it writes beside the user's, not over them.

What it replaces goes to a scratch folder, and is found there.

Kept so are checkpoints of `torch.save`, wherever they go, and files below the working folder that were there before the
run and are opened for writing, renamed or removed by Python's own functions. A file that was not there is made where the
script wants it: it may be a cache that the next run reads, a folder it lies in may be renamed, and code that is not Python
may ask for it. Folders whose name begins with a dot hold the state of tools and are left to them.
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
"""The clock of a file system may lag behind by so much."""
MAX_COPY_BYTES = 1 << 30
"""A file that is larger is changed in place: a copy of it would cost more than it saves."""

_LOOKUPS = ("stat", "lstat", "access", "chmod", "utime", "truncate")
_WRITES = frozenset("wax+")

Function = Callable[..., Any]


class Overlay:
    """Stand-ins for files that this run has written.

    Args:
        folder: The scratch folder.
        home: The folder whose files are the user's; the working folder unless given.
    """

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self._folder = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118 - all here are names, as scripts give them
        self._home = os.path.join(os.path.realpath(home or Path.cwd()), "")  # noqa: PTH118 - as above
        self._since = time.time() - MARGIN_S
        self._moved: dict[str, str] = {}
        self._names: set[str] = set()
        self._removed: set[str] = set()
        self._made = 0

    def install(self, patches: Patches) -> None:
        """Put the seams on Python's functions for files."""
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
        """What to ask for in place of a path: its stand-in, or itself."""
        name = _text(path) if self._moved else None
        if name is None or os.path.basename(name) not in self._names:  # noqa: PTH119 - as above
            return path
        return self._moved.get(_key(name), path)

    def claim(self, path: Any, content_of: str | None = None) -> str:
        """The stand-in of a path: the one it has, or a new one, with the content of another file if asked."""
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
        """Whether this is a file of the user's: below the working folder, and not changed since the run began."""
        if not key.startswith(self._home) or key.startswith(self._folder):
            return False
        if any(part.startswith(".") for part in Path(key[len(self._home) :]).parts[:-1]):
            return False
        try:
            found = os.lstat(key)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_ctime < self._since and found.st_size <= MAX_COPY_BYTES

    def opened(self, path: Any, mode: str) -> Any:
        """What to open in place of a path, in a mode of `open`."""
        found = self.find(path)
        name = _text(path) if found is path and _WRITES & set(mode) else None
        if name is None:
            return found
        key = _key(name)
        if not self.protects(key) or ("x" in mode and key not in self._removed):
            return path
        try:
            return self.claim(key, None if set("wx") & set(mode) else key)
        except OSError:
            return path  # no room for a copy: the script goes on

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
                self._removed.add(key)  # it stays, and may be removed again
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
        """A link to a file that stands elsewhere stands there too."""

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
            found = original(path)
            return found + [name for name in self._names_in(path) if name not in found]

        return listing_seam

    def _scanning(self, original: Function) -> Function:
        @functools.wraps(original)
        def scanning_seam(path: Any = ".") -> Any:
            names = self._names_in(path)
            return Scan(original(path), path, names, self.find) if names else original(path)

        return scanning_seam

    def _names_in(self, path: Any) -> list[str]:
        """The files in a folder that stand elsewhere."""
        name = _text("." if path is None else path) if self._moved and not isinstance(path, bytes) else None
        if name is None:
            return []
        folder = os.path.realpath(name)
        return [os.path.basename(key) for key in self._moved if os.path.dirname(key) == folder]  # noqa: PTH119, PTH120 - as above


class Scan:
    """What `os.scandir` gives, and behind it the files that stand elsewhere."""

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
        """Let the folder go."""
        self._entries.close()

    def _each(self) -> Iterator[Any]:
        left = set(self._names)
        for entry in self._entries:
            left.discard(entry.name)
            yield entry
        for name in self._names:
            if name in left:
                path = os.path.join(os.fspath(self._path), name)  # noqa: PTH118 - as the system's entries have it
                yield Entry(name, path, str(self._find(path)))


class Entry:
    """Stands for an `os.DirEntry` of a plain file."""

    def __init__(self, name: str, path: str, stand_in: str) -> None:
        self.name, self.path, self._stand_in = name, path, stand_in

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """It is one."""
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """It is none."""
        return False

    def is_symlink(self) -> bool:
        """It is none."""
        return False

    def inode(self) -> int:
        """The number of the file."""
        return self.stat().st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What the system says of it."""
        return os.stat(self._stand_in)  # noqa: PTH116 - a name, as above


def _text(path: Any) -> str | None:
    """A path as text; None for what is none, such as a file's number."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    try:
        return os.fsdecode(path)
    except (TypeError, ValueError):
        return None


def _key(name: str | bytes) -> str:
    """One name for a file, whatever links lead to its folder."""
    folder, base = os.path.split(os.path.abspath(os.fsdecode(name)))  # noqa: PTH100 - as above
    return os.path.join(os.path.realpath(folder), base)  # noqa: PTH118 - as above
