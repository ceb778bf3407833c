"""Rows that several threads copy with the kernels, and that arrive in their order.

Helpers begin at once, and whoever asks for rows copies along until these are there. So while a loop is busy with a batch, or
Python between two, its next ones are copied. Helpers sleep unless rows are asked for.
"""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from queue import SimpleQueue
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from upshift.data.kernels import kernels_of
from upshift.data.store.later import Later

Bytes = npt.NDArray[np.uint8]
_STEP_BYTES = 2**17
"""Bytes of a part, which a thread copies at once: some microseconds."""


class Copy:
    """A copy under way: what is copied where, and how far it came.

    Args:
        kernels: `upshift.data.store.kernels`.
        table: `[rows, bytes of a row]`.
        at: Which rows, `[picked]`.
        out: Where to, `[picked, bytes of a row]`.
    """

    __slots__ = ("__weakref__", "_arguments", "_kernels", "_step")

    def __init__(self, kernels: Any, table: Bytes, at: npt.NDArray[np.int64], out: Bytes) -> None:
        self._kernels = kernels
        self._step = max(_STEP_BYTES // table.shape[1], 1)
        state = np.zeros(kernels.DONE - (-len(at) // self._step), np.int64)
        self._arguments = (_read_only(table), _read_only(np.ascontiguousarray(at, np.int64)), out, state, self._step)

    def help(self) -> None:
        """Copy what no other thread has taken."""
        self._kernels.copy_rows(*self._arguments, 0, 0)

    def need(self, first: int, end: int) -> None:
        """Copy along until the rows from `first` to `end` (not included) are there.

        Raises:
            IndexError: One of them is none of the table.
        """
        while (found := self._kernels.copy_rows(*self._arguments, first, end)) == self._kernels.NOT_YET:
            time.sleep(0)  # another thread has taken some, and the system lets it wait: let it go on
        if found == self._kernels.OUTSIDE:
            table, at = self._arguments[:2]
            raise IndexError(
                f"a row of {at[first:end].min()} to {at[first:end].max()} is out of range: there are {len(table)}."
            )


class Arriving(Later):
    """Rows of a copy under way.

    Args:
        copy: Which.
        out: Where its rows arrive, `[rows, ...]`: these alone.
        first: The number of the first of them in the copy.
    """

    __slots__ = ("_copy", "_first", "_out")

    def __init__(self, copy: Copy, out: npt.NDArray[Any], first: int) -> None:
        self._copy, self._out, self._first = copy, out, first

    @property
    def nbytes(self) -> int:
        """Of the rows."""
        return self._out.nbytes

    def __len__(self) -> int:
        return len(self._out)

    def __getitem__(self, rows: slice) -> Arriving:
        return Arriving(self._copy, self._out[rows], self._first + rows.indices(len(self._out))[0])

    def made(self) -> npt.NDArray[Any]:
        """The rows, all there.

        Raises:
            IndexError: One of them is none of the table.
        """
        if len(self._out):
            self._copy.need(self._first, self._first + len(self._out))
        return self._out


class _Helpers:
    """Threads of this process that copy what they are given, until the process ends.

    They do not keep what they have not begun: where they are late and whoever asked has done it alone, its memory is free.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[ref[Copy]] = SimpleQueue()
        self._there = 0

    def ask(self, copy: Copy, threads: int) -> None:
        """Have a copy made by so many, while whoever asks goes on."""
        while self._there < threads:
            threading.Thread(target=self._work, name=f"upshift-copy-{self._there}", daemon=True).start()
            self._there += 1
        for _ in range(threads):
            self._asked.put(ref(copy))

    def _work(self) -> None:
        while True:
            copy = self._asked.get()()
            if copy is not None:
                copy.help()
            del copy  # its memory is used again when nobody holds it


@lru_cache(maxsize=1)
def helpers() -> _Helpers:
    """Those of this process; they are started when they are first asked."""
    return _Helpers()


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels, compiled once for this machine; None where Numba is not installed, or has no place to keep them."""
    return kernels_of("upshift.data.store.kernels", "rows are copied")


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory, as the kernels know it."""
    view = values.view()
    view.flags.writeable = False
    return view
