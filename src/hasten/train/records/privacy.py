"""Words without the person: a record of a run may be handed on, and home folders and users are not its business."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from pathlib import Path

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
