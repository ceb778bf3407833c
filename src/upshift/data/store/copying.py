"""Rows of a mapped array, picked and copied side by side.

One core copies slower than memory gives. Where rows are asked for by the thread that trains, nothing else is computed in the
meantime, so they are copied by the threads that torch computes with: no further ones, which would be in their way.
Threads that prepare batches ahead, and worker processes, copy alone.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_WORTH_SHARING = 2**17
"""Bytes from which several threads are faster than one."""
_PROCESS = os.getpid()
"""Threads do not outlive a fork: its child copies alone."""


class _Readable:
    """A read-only array that torch is shown as any other. Nothing may write to it: it is a mapped file."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        told = values.__array_interface__
        self.__array_interface__ = {**told, "data": (told["data"][0], False)}
        self._kept = values


def take_rows(values: npt.NDArray[Any], at: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
    """Copy rows of an array.

    Args:
        values: `[rows, ...]`, contiguous.
        at: Which rows, `[picked]`, all of them there.
        out: Where to, `[picked, ...]`, contiguous.
    """
    if out.nbytes < _WORTH_SHARING or values.dtype != out.dtype or not _alone():
        np.take(values, at, axis=0, out=out, mode="clip")
        return
    table, rows = (torch.from_numpy(_bytes(array)) for array in (np.asarray(_Readable(values)), out))
    torch.index_select(table, 0, torch.from_numpy(np.ascontiguousarray(at)), out=rows)


def _alone() -> bool:
    """Whether this is the thread that trains, in a process of several threads, and no fork of one."""
    main = threading.get_ident() == threading.main_thread().ident
    return main and os.getpid() == _PROCESS and torch.get_num_threads() > 1


def _bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The same memory as bytes, `[rows, bytes of a row]`."""
    return values.reshape(len(values), -1).view(np.uint8)
