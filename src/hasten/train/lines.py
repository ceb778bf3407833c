"""Write lines to a file: at once, or by a thread of its own that never makes the caller wait for the disk.

The background writer drops nothing. Its queue is bounded; where the disk cannot keep up, the caller waits for room and that
is counted. What the disk refuses is raised at the next call, and again when the writer is closed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TextIO

from hasten.core.errors import HastenError, MachineError

QUEUE_LINES = 256
POLL_S = 0.05
"""How often a caller that waits for room looks whether the thread has failed."""

MakeLine = Callable[[], str]
"""Gives one line, without its end; called by whoever writes it."""


class Lines(Protocol):
    """Where lines go."""

    def write(self, make: MakeLine) -> None:
        """Write the line that `make` gives."""
        ...

    def check(self) -> None:
        """Raise what went wrong since the last call."""
        ...

    def flush(self) -> None:
        """Wait until every line so far is written."""
        ...

    def close(self) -> None:
        """Write what is left and let the file go; safe to call again."""
        ...


class PlainLines:
    """Writes each line at once.

    Args:
        path: The file.
        append: Go on behind what is there; otherwise the file is made anew.

    Raises:
        MachineError: The file cannot be written, here or in any call.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._path = path
        self._file = _opened(path, append=append)

    def write(self, make: MakeLine) -> None:
        """Write a line, for readers to see at once."""
        _written(self._file, [make()], self._path)

    def check(self) -> None:
        """Nothing is left over from an earlier call."""

    def flush(self) -> None:
        """Every line is written already."""

    def close(self) -> None:
        """Let the file go."""
        _closed(self._file, self._path)


class BackgroundLines:
    """Hands each line to a thread.

    Args:
        path: The file.
        append: Go on behind what is there; otherwise the file is made anew.
        count: Told `report_waits` whenever a full queue made the caller wait, and `reports_in_background` for each line.
        size: Lines that may wait to be written.

    Raises:
        MachineError: The file cannot be opened. What goes wrong later is raised by the next call of any method; an
            HastenError that `make` raises comes as it is.
    """

    def __init__(
        self,
        path: Path,
        count: Callable[[str], None] = lambda _: None,
        *,
        append: bool = False,
        size: int = QUEUE_LINES,
    ) -> None:
        self._path, self._count = path, count
        self._file = _opened(path, append=append)
        self._queue: queue.Queue[MakeLine | None] = queue.Queue(maxsize=size)
        self._error: HastenError | None = None
        self._thread = threading.Thread(target=self._serve, name="hasten-lines", daemon=True)
        self._thread.start()

    def write(self, make: MakeLine) -> None:
        """Hand a line over; waits only while the queue is full."""
        self.check()
        try:
            self._queue.put_nowait(make)
        except queue.Full:
            self._count("report_waits")
            self._put_when_there_is_room(make)

    def check(self) -> None:
        """Raise what the thread met."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Wait until every line so far is written."""
        self._queue.join()
        self.check()

    def close(self) -> None:
        """Write what is left, end the thread and let the file go; safe to call again."""
        if self._thread.is_alive():
            self._queue.put(None)  # the thread empties the queue even after an error, so there will be room
            self._thread.join()
        try:
            self.check()
        finally:
            _closed(self._file, self._path)

    def _put_when_there_is_room(self, make: MakeLine) -> None:
        while True:
            try:
                self._queue.put(make, timeout=POLL_S)
            except queue.Full:
                self.check()
            else:
                return

    def _serve(self) -> None:
        while True:
            items = [self._queue.get()]
            while items[-1] is not None and len(items) < QUEUE_LINES:
                try:
                    items.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            makes = [item for item in items if item is not None]
            if makes and self._error is None:
                self._write(makes)
            for _ in items:
                self._queue.task_done()
            if items[-1] is None:
                return

    def _write(self, makes: list[MakeLine]) -> None:
        try:
            lines = []
            for make in makes:
                lines.append(make())
                self._count("reports_in_background")
            _written(self._file, lines, self._path)
        except HastenError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  whatever the user's callback raises must reach the training thread
            self._error = HastenError(f"A metric report raised {type(error).__name__}: {error}. Mend `on_report`.")
            self._error.__cause__ = error


def _opened(path: Path, *, append: bool) -> TextIO:
    try:
        return path.open("a" if append else "w", encoding="utf-8")
    except OSError as error:
        raise _cannot(path, error) from error


def _written(file: TextIO, lines: list[str], path: Path) -> None:
    try:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
    except OSError as error:
        raise _cannot(path, error) from error


def _closed(file: TextIO, path: Path) -> None:
    try:
        file.close()
    except OSError as error:
        raise _cannot(path, error) from error


def _cannot(path: Path, error: OSError) -> MachineError:
    return MachineError(f"Cannot write {path}: {error}. Make room there, or choose another folder with --out.")
