"""Write files in a thread: under a temporary name first, renamed once it is whole and on the disk.

The temporary name ends in `.tmp-hasten-HOST-PID-NUMBER`. A process that is killed leaves it there, and the next one
on the same machine that saves into the folder removes it.
"""

from __future__ import annotations

import itertools
import os
import platform
import stat
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import psutil

_OPEN, _CLOSE, _FSYNC, _REPLACE, _UNLINK, _STAT = os.open, os.close, os.fsync, os.replace, os.unlink, os.stat
_ACCESS = os.access
"""As they were before anybody put a seam on them."""

PAUSES = 20
"""A script that saves to one path all the time has a twentieth of the time spent on writing."""
IDLE_S = 30.0
"""The thread ends after so long without a file."""

_HOST = platform.node().replace(".", "_")
_MARK = f".tmp-hasten-{_HOST}-"
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PendingFile:
    """A file on its way.

    Attributes:
        path: Its name in the end, free of links.
        names: All names by which the script may ask for it, `path` among them.
        temporary: Its name until it is whole.
        num_bytes: About how much memory it holds until then.
        fill: Writes the content to the file of the given name.
        done: Called when it stands under its name, or never will.
    """

    path: str
    names: frozenset[str]
    temporary: str
    num_bytes: int
    fill: Callable[[str], None]
    done: Callable[[], None]


def create_temporary(path: str) -> str:
    """Make the empty file beside `path` that is to take its place, and return its name.

    Its name up to the last dot is that of `path`: torch writes this into the file. What `path` allows to whom, it allows.

    Raises:
        OSError: `path` cannot be replaced: it is no plain file, has other names, belongs to others, or cannot be written;
            or its folder cannot be.
    """
    mode = _mode_of(path)
    folder, name = os.path.split(path)
    stem = name.rpartition(".")[0] if "." in name else name
    if not stem:
        raise OSError(f"{path} has no name that torch would take")
    name = os.path.join(folder, f"{stem}{_MARK}{os.getpid()}-{next(_NUMBERS)}")  # noqa: PTH118 - names as torch takes them
    handle = _OPEN(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if mode is not None:
            os.fchmod(handle, mode)
    finally:
        _CLOSE(handle)
    return name


def _mode_of(path: str) -> int | None:
    try:
        found = _STAT(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid() or not _ACCESS(path, os.W_OK):
        raise OSError(f"{path} is written in place")
    return stat.S_IMODE(found.st_mode)


def remove_orphans(folder: str) -> None:
    """Remove what processes of this machine that are gone have left half written in a folder."""
    for item in Path(folder).glob(f"*{_MARK}*"):
        number = item.name.rpartition(_MARK)[2].partition("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            item.unlink(missing_ok=True)


@dataclass
class FileWriter:
    """Writes files one after another in a thread, which starts with the first.

    It is no executor for two reasons. A file that is not being written yet can be discarded for a newer one of the same
    path; and a path that was just written is left alone for `PAUSES` times as long as that took, unless somebody waits for
    it, since writing takes cores from the training.

    Attributes:
        errors: What could not be written and why; whoever tells it takes it out.
        waiting: What is under way.
    """

    errors: list[tuple[str, Exception]] = field(default_factory=list)
    waiting: deque[PendingFile] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _begun: PendingFile | None = None
    _rests: dict[str, float] = field(default_factory=dict)
    _hurry: int = 0

    @property
    def num_bytes(self) -> int:
        """Memory that is held by what is under way."""
        return sum(pending.num_bytes for pending in tuple(self.waiting))

    def add(self, pending: PendingFile) -> None:
        """Write a file after all others; in the caller if the interpreter can start no thread any more."""
        with self._changed:
            self.waiting.append(pending)
            self._changed.notify_all()
            started = self._thread is not None
        if not started:
            thread = threading.Thread(target=self._serve, name="hasten-saving", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                self._finish(pending)
            else:
                self._thread = thread

    def discard(self, path: str) -> None:
        """Drop what waits for its turn to be written to `path`: something newer is to take its place."""
        with self._changed:
            late = [pending for pending in self.waiting if pending.path == path and pending is not self._begun]
            for pending in late:
                self.waiting.remove(pending)
        for pending in late:
            _remove(pending.temporary)
            pending.done()

    def wait(self, matches: Callable[[], bool]) -> None:
        """Wait for as long as `matches()`; it looks at `waiting`. Nothing in the thread itself."""
        if self._thread is None or threading.current_thread() is self._thread:
            return
        with self._changed:
            self._hurry += 1
            self._changed.notify_all()
            try:
                while matches() and self._thread.is_alive():
                    self._changed.wait(1.0)
            finally:
                self._hurry -= 1

    def _serve(self) -> None:
        """Write what is due, until there has been nothing for a while."""
        while True:
            with self._changed:
                while (pending := self._due()) is None:
                    if not self._changed.wait(self._pause_s()) and not self.waiting:
                        self._thread = None
                        return
                self._begun = pending
            self._finish(pending)

    def _due(self) -> PendingFile | None:
        """Return the first file that may be written now."""
        now = monotonic()
        return next((pending for pending in self.waiting if self._hurry or self._rests.get(pending.path, 0.0) <= now), None)

    def _pause_s(self) -> float:
        """Seconds until one may be, or until the thread ends where there is none."""
        rests = [self._rests.get(pending.path, 0.0) for pending in self.waiting]
        return max(min(rests) - monotonic(), 0.001) if rests else IDLE_S

    def _finish(self, pending: PendingFile) -> None:
        started = monotonic()
        try:
            pending.fill(pending.temporary)
            _flush(pending.temporary)
            _REPLACE(pending.temporary, pending.path)
            _flush(os.path.dirname(pending.path))  # noqa: PTH120 - a name, as all of them here
        except Exception as error:  # noqa: BLE001 - told at the next save, or at the end
            self.errors.append((pending.path, error))
            _remove(pending.temporary)
        pending.done()
        ended = monotonic()
        with self._changed:
            self._rests = {path: until for path, until in self._rests.items() if until > ended}
            self._rests[pending.path] = ended + PAUSES * (ended - started)
            self.waiting.remove(pending)
            self._changed.notify_all()


def _flush(name: str) -> None:
    """Let a file, or a rename in a folder, survive a loss of power."""
    handle = _OPEN(name, os.O_RDONLY)
    try:
        _FSYNC(handle)
    finally:
        _CLOSE(handle)


def _remove(name: str) -> None:
    try:
        _UNLINK(name)
    except FileNotFoundError:
        return
