"""Remove Hasten's frames from the tracebacks of a watched script."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from hasten.script.source_lines import OURS

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def without_ours(previous: Hook) -> Hook:
    """Return a `sys.excepthook` that removes Hasten's frames and calls the previous hook."""

    @functools.wraps(previous)
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        strip_chain(error)
        return previous(kind, error, stripped(trace))

    return hook


def strip_chain(error: BaseException | None) -> None:
    """Remove Hasten's frames from an error, its causes and its contexts."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        error.__traceback__ = stripped(error.__traceback__)
        error = error.__cause__ or error.__context__


def stripped(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without Hasten's frames."""
    frames: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            frames.append(trace)
        trace = trace.tb_next
    for before, after in zip(frames, [*frames[1:], None], strict=True):
        before.tb_next = after
    return frames[0] if frames else None
