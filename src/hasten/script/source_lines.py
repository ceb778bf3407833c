"""Find files and lines of the user's code."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

import torch

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - compared with file names of frames
"""The folder of this package."""
FOREIGN = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,  # noqa: PTH100, PTH120 - as above
    OURS,
    os.path.join(sysconfig.get_path("stdlib"), "logging") + os.sep,  # noqa: PTH118 - as above
)


MAKERS = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "collate", "collate_fn"})
"""Names of functions that make samples or batches."""
MAKER_DEPTH = 4
"""Number of calls within the user's code among which such a function is searched."""


@functools.cache
def _folders_of_libraries() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(path, "") for path in paths if path)  # noqa: PTH118 - as above


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package, not to the user's project."""
    return file.startswith(("<frozen ", *FOREIGN, *_folders_of_libraries()))


def calling_line(depth: int = 3) -> tuple[str, int] | None:
    """Return the user's file and line that called the seam, directly or through a library. None if torch called it."""
    frame = sys._getframe(depth)  # noqa: SLF001 - gets one frame without the cost of the whole stack
    return None if frame.f_code.co_filename.startswith(FOREIGN[0]) else _nearest(frame)


def makes_samples(depth: int = 3) -> bool:
    """Return whether the user's code that called the seam makes samples or batches, rather than trains with them."""
    frame: FrameType | None = sys._getframe(depth)  # noqa: SLF001 - as above
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    for _ in range(MAKER_DEPTH):
        if frame is None:
            break
        if frame.f_code.co_name in MAKERS:
            return True
        frame = frame.f_back
    return False


def users_line(depth: int = 2) -> tuple[str, int] | None:
    """Return the file and line of the nearest user frame. If all code is installed, use a library other than torch."""
    return _nearest(sys._getframe(depth))  # noqa: SLF001 - as above


def nearest_line(frame: FrameType | None) -> tuple[str, int] | None:
    """Return the file and line of the nearest user frame, from this frame outwards."""
    return _nearest(frame)


def _nearest(frame: FrameType | None) -> tuple[str, int] | None:
    installed: FrameType | None = None
    while frame is not None and is_library(file := frame.f_code.co_filename):
        if installed is None and not file.startswith(FOREIGN):
            installed = frame
        frame = frame.f_back
    nearest = frame or installed
    return None if nearest is None else (nearest.f_code.co_filename, nearest.f_lineno)


def reading_line(dataset: Any) -> tuple[str, int] | None:
    """Return the line where the user's dataset makes a sample: its `__getitem__` or `__iter__`, below torch's wrappers.

    Returns None if the dataset belongs to a library.
    """
    for _ in range(8):
        if not type(dataset).__module__.startswith("torch."):
            break
        inner = getattr(dataset, "datasets", [getattr(dataset, "dataset", None)])
        if not inner or inner[0] is None:
            break
        dataset = inner[0]
    for name in ("__getitems__", "__getitem__", "__iter__"):
        line = line_of(getattr(type(dataset), name, None))
        if line is not None and not is_library(line[0]):
            return line
    return None


def line_of(function: Any) -> tuple[str, int] | None:
    """Return the file and line of a Python function, or None for anything else."""
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else None
