"""What a run said, in a file: a line with its time for each thing, so that words outlive the terminal."""

from __future__ import annotations

import getpass
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

LOG = "log.txt"


class RunLog:
    """Says things and writes them down; what comes before the file is open waits for it. Any thread may call it.

    Args:
        say: Who tells a person.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._file: TextIO | None = None
        self._waiting: list[str] | None = []
        self._lock = threading.Lock()

    def __call__(self, words: str) -> None:
        """Say it, and write it down."""
        self._say(words)
        self.note(words)

    def note(self, words: str) -> None:
        """Write it down only."""
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        line = f"{time}  {impersonal(words)}\n"
        with self._lock:
            if self._file is not None:
                self._write(line)
            elif self._waiting is not None:
                self._waiting.append(line)

    def open(self, path: Path, *, append: bool) -> None:
        """Begin the file, or go on behind what is there. Where that fails it is said, and the run goes on without."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
            try:
                self._file = path.open("a" if append else "w", encoding="utf-8")
            except OSError as error:
                self._lost(error)
            else:
                self._write("".join(waiting))

    def close(self) -> None:
        """Let the file go."""
        with self._lock:
            self._waiting = None
            self._let_go()

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        """A log is no reason to end a training: say that it ends here, and go on."""
        self._let_go()
        self._say(f"what is said from here on is not in {LOG}: {error.strerror}.")

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # each line was flushed when it came, and its error told then
                file.close()


_HOMES = re.compile(r"(?<![\w.])(/home|/Users)/[^/\s:'\"]+")


def impersonal(words: str) -> str:
    """The same words: paths from the present folder on, home folders as `~`, the user's name in a path as `<user>`."""
    words = words.encode("utf-8", "replace").decode("utf-8")  # a file's name may hold bytes that no text file can
    here, home, user = _asked(Path.cwd), _asked(Path.home), _asked(getpass.getuser)
    if here not in ("", "/"):
        words = words.replace(f"{here}/", "")
    if home.count("/") > 1:
        words = re.sub(rf"{re.escape(home)}(?=[/:\s]|$)", "~", words)
    words = _HOMES.sub("~", words)
    return re.sub(rf"(?<=/){re.escape(user)}(?=[/:\s]|$)", "<user>", words) if user else words


def _asked(ask: Callable[[], object]) -> str:
    """What the system answers; empty where it cannot: a folder that is gone, or a user without a name."""
    try:
        return str(ask())
    except (OSError, KeyError, RuntimeError):
        return ""
