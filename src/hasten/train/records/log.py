"""Write the messages of a run to a log file, one line per message with its time."""

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
    """Shows messages and writes them to a file. Messages before the file is open are kept until then. Thread-safe.

    Args:
        say: Shows a message to the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._file: TextIO | None = None
        self._waiting: list[str] | None = []
        self._lock = threading.Lock()

    def __call__(self, message: str) -> None:
        """Show a message, and write it to the file."""
        self._say(message)
        self.note(message)

    def note(self, message: str) -> None:
        """Write a message to the file only."""
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        line = f"{time}  {impersonal(message)}\n"
        with self._lock:
            if self._file is not None:
                self._write(line)
            elif self._waiting is not None:
                self._waiting.append(line)

    def open(self, path: Path, *, append: bool) -> None:
        """Open the file, new or for appending. If this fails, show a message and continue without a log file."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
            try:
                self._file = path.open("a" if append else "w", encoding="utf-8")
            except OSError as error:
                self._lost(error)
            else:
                self._write("".join(waiting))

    def close(self) -> None:
        """Close the file."""
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
        """Stop logging to the file and show a message: a log error must not stop the training."""
        self._let_go()
        self._say(f"{LOG} cannot be written, so further messages are not logged: {error.strerror}.")

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # each line was already flushed, and its error reported
                file.close()


_HOMES = re.compile(r"(?<![\w.])(/home|/Users)/[^/\s:'\"]+")


def impersonal(text: str) -> str:
    """Remove personal parts of paths: the working folder, home folders (`~`) and the user's name (`<user>`)."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # a file name may contain bytes that are not valid text
    here, home, user = _asked(Path.cwd), _asked(Path.home), _asked(getpass.getuser)
    if here not in ("", "/"):
        text = text.replace(f"{here}/", "")
    if home.count("/") > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/:\s]|$)", "~", text)
    text = _HOMES.sub("~", text)
    return re.sub(rf"(?<=/){re.escape(user)}(?=[/:\s]|$)", "<user>", text) if user else text


def _asked(ask: Callable[[], object]) -> str:
    """Return the system's answer; empty on an error, such as a deleted working folder or a user without a name."""
    try:
        return str(ask())
    except (OSError, KeyError, RuntimeError):
        return ""
