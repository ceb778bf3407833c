"""Detect when a run hangs, and write the stack traces of its processes.

A thread checks regularly when the last update ended. If it was too long ago, every process of the run writes the stack
traces of its threads to a file. Loader workers do so when they receive a signal. A run that waits for a dead worker, a lock
or a slow disk is then noticed early.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self, TextIO

import psutil

ASK = signal.SIGUSR2
"""The signal that asks a process to write its stack traces."""
_LEAST_S = 60.0
"""Seconds without an update that are always allowed."""
_LEAST_OTHER_S = 600.0
"""Seconds that other work is always allowed: a validation, waiting for a checkpoint."""
_TIMES = 20.0
"""Factor over the longest update so far, above which an update counts as hung."""
_UPDATE = "update"
_LOOK_S = 1.0
"""Seconds between two checks."""
_ANSWER_S = 0.5
"""Seconds to wait for the stack traces of other processes."""


class Watchdog:
    """Checks that updates keep ending. A context manager.

    Args:
        folder: Folder for stack traces: `stacks-PROCESS.txt`.
        say: Called with a message each time the run hangs.
        least_s: Seconds without an update that are always allowed.
        least_other_s: Seconds that other work is always allowed: a validation, waiting for a checkpoint.

    Attributes:
        told: Number of times that a hang was reported.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], *, least_s: float = _LEAST_S, least_other_s: float = _LEAST_OTHER_S
    ) -> None:
        self._folder, self._say, self._least, self._least_other = folder, say, least_s, least_other_s
        self._beat = monotonic()
        self._now = _UPDATE
        self._longest: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.told = 0
        self._was_told = False

    def beat(self) -> None:
        """Record that an update ended."""
        now = monotonic()
        if not self._was_told:
            self._longest[self._now] = max(self._longest.get(self._now, 0.0), now - self._beat)
        self._beat, self._was_told = now, False

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Watch work other than an update, such as `validation`, with its own time limit."""
        self._beat, self._was_told, self._now = monotonic(), False, what
        try:
            yield
        finally:
            self.beat()
            self._now = _UPDATE

    @property
    def patience_s(self) -> float:
        """Seconds after which the current work counts as hung."""
        least = self._least if self._now == _UPDATE else self._least_other
        return max(least, _TIMES * self._longest.get(self._now, 0.0))

    def __enter__(self) -> Self:
        self._beat = monotonic()
        _ANSWER.begin(self._folder)
        self._thread = threading.Thread(target=self._watch, name="hasten-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        _ANSWER.end()

    def _watch(self) -> None:
        while not self._ended.wait(min(_LOOK_S, self._least / 4)):
            waited = monotonic() - self._beat
            if waited > self.patience_s and not self._was_told:
                self._was_told = True
                self.told += 1
                self._tell(waited)

    def _tell(self, waited: float) -> None:
        files = dump_stacks(self._folder)
        dead = [child for child in psutil.Process().children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]
        ended = f" {len(dead)} of its processes have died." if dead else ""
        shown = ", ".join(str(file) for file in files)
        self._say(f"no {self._now} has ended for {waited:.0f} s.{ended} Stack traces of the processes: {shown}")


class _Answer:
    """Makes this process and its forks write their stack traces on the signal `ASK`, each to its own file."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._file: TextIO | None = None
        self._follows_forks = False

    def begin(self, folder: Path) -> None:
        """Start to answer the signal."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._register()
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(after_in_child=self._register)

    def end(self) -> None:
        """Stop answering, and remove the file if it is empty."""
        self._folder = None
        if self._file is not None:
            faulthandler.unregister(ASK)
            self._file.close()
            path = Path(self._file.name)
            if path.exists() and not path.stat().st_size:
                path.unlink()
            self._file = None

    def _register(self) -> None:
        if self._folder is None or threading.current_thread() is not threading.main_thread() or not self._folder.exists():
            return
        self._file = _file(self._folder, os.getpid()).open("a", encoding="utf-8")
        faulthandler.register(ASK, file=self._file, all_threads=True)


_ANSWER = _Answer()


def dump_stacks(folder: Path) -> list[Path]:
    """Write the stack traces of this process and its descendants, and return the files."""
    me = psutil.Process()
    files = [_file(folder, me.pid)]
    with files[0].open("a", encoding="utf-8") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
    asked = []
    for child in me.children(recursive=True):
        path = _file(folder, child.pid)
        if path.exists():  # it answers the signal, which would end any other process
            asked.append((path, path.stat().st_size))
            child.send_signal(ASK)
    until = monotonic() + _ANSWER_S
    while monotonic() < until and any(path.stat().st_size == size for path, size in asked):
        sleep(0.01)
    return files + [path for path, size in asked if path.stat().st_size > size]


def _file(folder: Path, process: int) -> Path:
    return folder / f"stacks-{process}.txt"
