"""Say what takes long before the first update: reading labels, drawing images, compiling kernels.

Code that a job calls says it with `doing`. A command shows it within `doing_shown`; otherwise nothing is printed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOG = logging.getLogger("hasten.doing")


def doing(words: str) -> None:
    """Say what is being done from now on."""
    _LOG.info("%s", words)


class _Shown(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@contextmanager
def doing_shown(say: Callable[[str], None]) -> Iterator[None]:
    """Show what is being done while the block runs.

    Args:
        say: Called with the words.
    """
    handler, level, propagates = _Shown(say), _LOG.level, _LOG.propagate
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(level)
        _LOG.propagate = propagates
