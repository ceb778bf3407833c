"""Write one line per metric report to a file, at once or in a background thread to keep the disk out of training.

No line is dropped. An error in the thread is raised by the next call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hasten.core.errors import MachineError


class MetricsFile:
    """A text file that takes one line per report.

    Args:
        path: The file.
        append: Continue the existing file instead of replacing it.
        background: Write in a thread.
        count: Called with `reports_in_background` for each line written by the thread.

    Raises:
        MachineError: The file cannot be opened or written. An error in the thread is raised by the next call of any method.
    """

    def __init__(
        self,
        path: Path,
        *,
        append: bool = False,
        background: bool = False,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path, self._count = path, count
        try:
            self._file = path.open("a" if append else "w", encoding="utf-8")
        except OSError as error:
            raise self._failure(error) from error
        self._thread = ThreadPoolExecutor(1, "hasten-metrics") if background else None
        self._pending: deque[Future[None]] = deque()

    def write(self, make_line: Callable[[], str]) -> None:
        """Write the line that `make_line` returns. The thread calls `make_line`, if there is one."""
        if self._thread is None:
            self._write(make_line)
            return
        self.check()
        self._pending.append(self._thread.submit(self._write_in_background, make_line))

    def check(self) -> None:
        """Raise the first error of the thread since the last call."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def flush(self) -> None:
        """Wait until every line is written."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Write the remaining lines and close the file. Can be called more than once."""
        try:
            if self._thread is not None:
                self._thread.shutdown()
            self.flush()
        finally:
            try:
                self._file.close()
            except OSError as error:
                raise self._failure(error) from error

    def _write_in_background(self, make_line: Callable[[], str]) -> None:
        self._write(make_line)
        self._count("reports_in_background")

    def _write(self, make_line: Callable[[], str]) -> None:
        line = make_line()
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> MachineError:
        return MachineError(f"Cannot write {self._path}: {error}. Free some space, or choose another folder with --out.")
