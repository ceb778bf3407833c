"""Describe an error by the line of the user's own code behind it, not by the line of a library that raised it."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from hasten.core.errors import HastenError

PACKAGE = str(Path(__file__).parents[1])
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MAX_CHARACTERS = 300
"""Longest message of an error that is quoted, in characters."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_ENDS_TRACEBACK = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"


def is_user_file(file: str) -> bool:
    """Return whether a source file belongs to the user: not to Hasten, Python or an installed package."""
    if file.startswith("<"):
        return False
    parts = Path(file).parts
    return not (file.startswith((PACKAGE, *LIBRARIES)) or "site-packages" in parts or "dist-packages" in parts)


def error_words(error: BaseException) -> str:
    """Describe an error on one line: class, message, and the deepest line of the user's code.

    A `HastenError` is returned as it is written: it names what is wrong itself. An error from a loader worker carries the
    worker's traceback as text, which is searched for the line.
    """
    if isinstance(error, HastenError):
        return str(error)
    message = str(error)
    if _TRACEBACK in message and (words := traceback_words(message)):
        return words
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}{place_words([(error.filename or '<unknown>', error.lineno or 0)])}"
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    said = f": {_one_line(message)}" if message else ""
    return f"{type(error).__name__}{said}{place_words(frames)}"


def traceback_words(text: str) -> str:
    """Describe the last error whose traceback is printed in `text`, as `error_words` does; empty where there is none."""
    _, found, last = text.rpartition(_TRACEBACK)
    errors = _ENDS_TRACEBACK.findall(last)
    if not found or not errors:
        return ""
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(last)]
    return f"{_one_line(errors[0])}{place_words(frames)}"


def place_words(frames: Iterable[tuple[str, int]]) -> str:
    """Name the deepest line of the user's code among frames, such as ` (train.py:12)`; empty where there is none."""
    of_user = [(file, line) for file, line in frames if is_user_file(file)]
    if not of_user:
        return ""
    file, line = of_user[-1]
    path, folder = Path(file), Path.cwd()
    return f" ({path.relative_to(folder) if path.is_relative_to(folder) else path}:{line})"


def _one_line(message: str) -> str:
    words = " ".join(message.split())
    return words if len(words) <= MAX_CHARACTERS else f"{words[:MAX_CHARACTERS]}..."
