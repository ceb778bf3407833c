"""The file of windows in the run's folder: `windows.jsonl`, and `windows-RANK.jsonl` for other ranks.

Each part of a run begins with a line of kind `start`; lines of kind `window` follow. A resumed run appends a part. Windows
of an earlier part that end after the first step of a later part were repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from hasten.core.errors import DataError
from hasten.monitor.sink import SinkCard
from hasten.monitor.window import SCHEMA, Start, Window
from hasten.train.records.runs import WINDOWS


def windows_path(run: Path, rank: int = 0) -> Path:
    """Return the file of a rank's windows in a run's folder."""
    return run / (f"windows-{rank}.jsonl" if rank else WINDOWS)


def windows_files(run: Path) -> list[Path]:
    """Return the files of windows in a run's folder, by rank."""
    ranks = [path for path in run.glob("windows-*.jsonl") if path.stem.removeprefix("windows-").isdigit()]
    ranks.sort(key=lambda path: int(path.stem.removeprefix("windows-")))
    return [path for path in (windows_path(run), *ranks) if path.is_file()]


class WindowsFile:
    """The sink that every run has: one line per window."""

    card: ClassVar[SinkCard] = SinkCard(
        name="folder", summary="`windows.jsonl` in the run's folder; always on", every_rank=True
    )

    def __init__(self, start: Start, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = windows_path(folder, start.rank).open("ab")
        self._torn = self._file.tell() > 0  # an earlier part may have been killed within a line
        try:
            self._write(start.to_dict())
        except OSError:
            with suppress(OSError):  # what is buffered cannot be written either
                self._file.close()
            raise

    def write(self, window: Window) -> None:
        """Append a line."""
        self._write(window.to_dict())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        before, self._torn = b"\n" if self._torn else b"", True
        self._file.write(before + text)
        self._file.flush()
        self._torn = False


class WindowsReader:
    """Reads the windows of a file, also while it grows.

    Attributes:
        start: The start of the newest part; None before the first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.start: Start | None = None

    def new(self) -> Iterator[Window]:
        """Yield the windows that were added since the last call. Unreadable lines are passed over.

        Raises:
            DataError: The file was written by a newer version of Hasten, or cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                lines = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"{self._path} cannot be read: {error.strerror}.") from error
        whole = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            window = self._read(line)
            if window is not None:
                yield window

    def _read(self, text: bytes) -> Window | None:
        try:
            line = json.loads(text)
            kind = line.pop("kind")
            if kind == "start":
                schema = line.pop("schema")
                if schema > SCHEMA:
                    raise DataError(
                        f"{self._path} was written by a newer version of Hasten (schema {schema}; this one reads {SCHEMA}): "
                        f"upgrade Hasten."
                    )
                self.start = Start(**line)
            elif kind == "window" and self.start is not None:
                return Window.from_dict(line, self.start)
        except (ValueError, KeyError, TypeError, AttributeError):  # a line that a killed run or a full disk cut short
            return None
        return None


def last_step(run: Path) -> int:
    """Return the last step in the windows of rank 0; 0 if there are none, or if they cannot be read."""
    try:
        return max((window.to_step for window in read_windows(windows_path(run))[-1:]), default=0)
    except DataError:
        return 0


def read_windows(path: Path) -> list[Window]:
    """Return all windows of a file. Windows that a later part of the run repeated are left out.

    Raises:
        DataError: The file was written by a newer version of Hasten, or cannot be read.
    """
    windows: list[Window] = []
    for window in WindowsReader(path).new():
        keep(windows, window)
    return windows


def keep(windows: list[Window], window: Window) -> None:
    """Append a window. If it begins a later part of the run, remove the windows that this part repeats."""
    if windows and window.start is not windows[-1].start:
        while windows and windows[-1].to_step > window.start.step:
            windows.pop()
    windows.append(window)
