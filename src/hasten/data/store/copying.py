"""Rows of a mapped array, picked and copied side by side.

One core copies slower than memory gives. Where rows are asked for by the thread that trains, nothing else is computed in the
meantime, so they are copied by the threads that torch computes with: no further ones, which would be in their way.
Threads that prepare batches ahead, and worker processes, copy alone.

A process that copies a lot loads kernels that ask memory for the next rows while they copy one, where Numba is installed.
Rows of several batches are then copied by helpers while the loop is busy with the first of them, or with those before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sized
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hasten.data.store.later import made
from hasten.data.store.sharing import Arriving, Copy, helpers, kernels, rows_of

Rowed = TypeVar("Rowed", bound=Sized)
_WORTH_SHARING = 2**17
"""Bytes from which several threads are faster than one."""
_WORTH_LOADING = 2**31
"""Bytes from which kernels are loaded: until then a process has spent about as long with copying as loading takes."""
_ROW_BYTES = range(256, 2**16 + 1)
"""Of rows that kernels copy: the processor itself asks for what follows within longer ones."""
_PROCESS = os.getpid()
"""Threads do not outlive a fork: its child copies alone."""


class _Readable:
    """A read-only array that torch is shown as any other. Nothing may write to it: it is a mapped file."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        told = values.__array_interface__
        self.__array_interface__ = {**told, "data": (told["data"][0], False)}
        self._kept = values


class _Copied:
    """What this process copied of rows that kernels could copy; about, since threads may count at once."""

    num_bytes = 0


def take_rows(values: npt.NDArray[Any], at: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
    """Copy rows of an array.

    Args:
        values: `[rows, ...]`, contiguous.
        at: Which rows, `[picked]`, all of them there.
        out: Where to, `[picked, ...]`, contiguous.
    """
    made(begin_rows(values, at, out))


def begin_rows(values: npt.NDArray[Any], at: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> npt.NDArray[Any] | Arriving:
    """Copy rows as `take_rows` does, or have helpers begin with it.

    Returns:
        `out` when all is there, or what makes a slice of it be there.
    """
    if out.nbytes < _WORTH_SHARING or values.dtype != out.dtype:
        np.take(values, at, axis=0, out=out, mode="clip")
        return out
    table, rows = _bytes(values), _bytes(out)
    if (found := kernels_for(out.nbytes, table.shape[1])) is not None:
        return begin(Copy(found, rows_of(found, table, at), rows.reshape(-1)), out)
    if not _may_share():
        np.take(values, at, axis=0, out=out, mode="clip")
    else:
        from_table, to_rows = torch.from_numpy(np.asarray(_Readable(table))), torch.from_numpy(rows)
        torch.index_select(from_table, 0, torch.from_numpy(np.ascontiguousarray(at)), out=to_rows)
    return out


def begin(copy: Copy, out: Rowed) -> Rowed | Arriving:
    """Have helpers begin with a copy of some bytes into `out`, or make it, where this thread copies alone.

    Returns:
        `out` when all is there, or what makes a slice of it be there.
    """
    if not _may_share():
        copy.need(0, len(out))
        return out
    helpers().ask(copy)
    return Arriving(copy, out, 0)


def kernels_for(num_bytes: int, row_bytes: int) -> Any:
    """The kernels; None where so many bytes of rows of about this size are copied as fast without, or they are not there."""
    if num_bytes < _WORTH_SHARING or row_bytes not in _ROW_BYTES or not _worth_loading(num_bytes):
        return None
    return kernels()


def _worth_loading(num_bytes: int) -> bool:
    _Copied.num_bytes += num_bytes
    return _Copied.num_bytes >= _WORTH_LOADING


def _may_share() -> bool:
    """Whether this is the thread that trains, in a process of several threads, and no fork of one."""
    main = threading.get_ident() == threading.main_thread().ident
    return main and os.getpid() == _PROCESS and torch.get_num_threads() > 1


def _bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The same memory as bytes, `[rows, bytes of a row]`."""
    return values.reshape(len(values), -1).view(np.uint8)
