"""Write files in a thread, under a temporary name that is renamed once the file is complete and on disk.

The temporary name ends in `.tmp-hasten-HOST-PID-NUMBER`. A killed process leaves its temporary files behind. The next
process on the same machine that saves into the folder removes them.
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
"""The original functions, saved before any seam replaces them."""

PAUSES = 20
"""A path that was just written is not written again for this many times the duration of the write."""
IDLE_S = 30.0
"""Seconds without a file after which the thread ends."""

_HOST = platform.node().replace(".", "_")
_MARK = f".tmp-hasten-{_HOST}-"
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PendingFile:
    """A file that is waiting to be written or is being written.

    Attributes:
        path: Its final name, with links resolved.
        names: All names by which the script may access it, including `path`.
        temporary: Its temporary name.
        num_bytes: Approximate memory it occupies until it is written.
        fill: Writes the content to the file of the given name.
        done: Called when the file is complete or has failed.
    """

    path: str
    names: frozenset[str]
    temporary: str
    num_bytes: int
    fill: Callable[[str], None]
    done: Callable[[], None]


def create_temporary(path: str) -> str:
    """Create the empty temporary file next to `path` and return its name.

    The name up to the last dot is that of `path`, because torch writes it into the file. The permissions are those of
    `path`.

    Raises:
        OSError: `path` cannot be replaced because it is not a regular file, has other hard links, belongs to another user,
            or is not writable; or its folder is not writable.
    """
    mode = _mode_of(path)
    folder, name = os.path.split(path)
    stem = name.rpartition(".")[0] if "." in name else name
    if not stem:
        raise OSError(f"torch does not accept the file name {path}")
    name = os.path.join(folder, f"{stem}{_MARK}{os.getpid()}-{next(_NUMBERS)}")  # noqa: PTH118 - torch takes strings
    handle = _OPEN(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if mode is not None:
            os.fchmod(handle, mode)
    finally:
        _CLOSE(handle)
    return name


def _mode_of(path: str) -> int | None:
    try:
        status = _STAT(path)
    except FileNotFoundError:
        return None
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_nlink > 1
        or status.st_uid != os.geteuid()
        or not _ACCESS(path, os.W_OK)
    ):
        raise OSError(f"{path} cannot be replaced")
    return stat.S_IMODE(status.st_mode)


def remove_orphans(folder: str) -> None:
    """Remove temporary files in a folder that were left by ended processes of this machine."""
    for item in Path(folder).glob(f"*{_MARK}*"):
        number = item.name.rpartition(_MARK)[2].partition("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            item.unlink(missing_ok=True)


@dataclass
class FileWriter:
    """Writes files one after another in a thread, which starts with the first file.

    An executor would not suffice for two reasons. A pending file can be discarded for a newer one of the same path. And a
    path that was just written is not written again for `PAUSES` times the duration of the write, unless someone waits for
    it, because writing takes CPU time from the training.

    Attributes:
        errors: Path and error of failed files. The reader removes each entry that it reports.
        waiting: Pending files, including the one being written.
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
        """Memory occupied by pending files."""
        return sum(pending.num_bytes for pending in tuple(self.waiting))

    def add(self, pending: PendingFile) -> None:
        """Queue a file. If the interpreter can no longer start threads, write it in the calling thread."""
        with self._changed:
            self.waiting.append(pending)
            self._changed.notify_all()
            started = self._thread is not None
        if not started:
            thread = threading.Thread(target=self._serve, name="hasten-saving", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down
                self._finish(pending)
            else:
                self._thread = thread

    def discard(self, path: str) -> None:
        """Drop pending files for `path` that are not being written yet, because a newer one replaces them."""
        with self._changed:
            late = [pending for pending in self.waiting if pending.path == path and pending is not self._begun]
            for pending in late:
                self.waiting.remove(pending)
        for pending in late:
            _remove(pending.temporary)
            pending.done()

    def wait(self, matches: Callable[[], bool]) -> None:
        """Wait while `matches()` is true. It examines `waiting`. Does nothing in the writer thread itself."""
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
        """Write files when they are due, until none has arrived for `IDLE_S`."""
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
        """Return the seconds until the next file is due, or until the thread ends if there is none."""
        rests = [self._rests.get(pending.path, 0.0) for pending in self.waiting]
        return max(min(rests) - monotonic(), 0.001) if rests else IDLE_S

    def _finish(self, pending: PendingFile) -> None:
        started = monotonic()
        try:
            pending.fill(pending.temporary)
            _flush(pending.temporary)
            _REPLACE(pending.temporary, pending.path)
            _flush(os.path.dirname(pending.path))  # noqa: PTH120 - all paths here are strings
        except Exception as error:  # noqa: BLE001 - reported at the next save, or at the end
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
    """Flush a file, or a rename in a folder, to disk, so that it survives a power failure."""
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
