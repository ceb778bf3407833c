"""Files and lines of the user's code."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

import torch

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - compared with names of frames
"""The folder of this package: seams, hosts, callbacks."""
FOREIGN = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,  # noqa: PTH100, PTH120 - as above
    OURS,
    os.path.join(sysconfig.get_path("stdlib"), "logging") + os.sep,  # noqa: PTH118 - as above
)


def is_torchs(file: str) -> bool:
    """Whether a file is one of torch's own."""
    return file.startswith(FOREIGN[0])


def calling_line(depth: int = 2) -> tuple[str, int] | None:
    """File and line that called the seam; None where torch itself did."""
    frame = sys._getframe(depth)  # noqa: SLF001 - the documented way to one frame, without the cost of the whole stack
    name = frame.f_code.co_filename
    return None if name.startswith(FOREIGN[0]) else (name, frame.f_lineno)


def users_line(depth: int = 2, foreign: tuple[str, ...] = ()) -> tuple[str, int] | None:
    """File and line of the nearest frame that is neither ours, nor torch's, nor of `logging`, nor in a foreign folder."""
    frame: FrameType | None = sys._getframe(depth)  # noqa: SLF001 - as above
    passed = FOREIGN + foreign if foreign else FOREIGN
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def reading_line(dataset: Any) -> tuple[str, int] | None:
    """Where the user's data set makes a sample: its `__getitem__` or `__iter__`, below the wrappers of torch."""
    for _ in range(8):
        if not type(dataset).__module__.startswith("torch."):
            break
        inner = getattr(dataset, "datasets", [getattr(dataset, "dataset", None)])
        if not inner or inner[0] is None:
            break
        dataset = inner[0]
    for name in ("__getitems__", "__getitem__", "__iter__"):
        found = line_of(getattr(type(dataset), name, None))
        if found is not None and not found[0].startswith(FOREIGN[0]):
            return found
    return None


def line_of(function: Any) -> tuple[str, int] | None:
    """File and line of a Python function; None for anything else."""
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else None
