"""Rows that several threads copy with the kernels, and that arrive in their order.

Helpers begin at once, and whoever asks for rows copies along until these are there. So while a loop is busy with a batch, or
Python between two, its next ones are copied. Helpers sleep unless rows are asked for.
"""

from __future__ import annotations

import atexit
import threading
import time
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import numpy as np
import numpy.typing as npt

from upshift.data.kernels import kernels_of
from upshift.data.store.later import Later

Bytes: TypeAlias = npt.NDArray[np.uint8]
Index: TypeAlias = npt.NDArray[np.int64]
_STEP_BYTES = 2**17
"""Bytes of a part, which a thread copies at once: some microseconds."""
_WAIT_SECONDS = 10.0
"""For a helper at the end of the process: it may wait for a disk."""


class Rows(NamedTuple):
    """Rows picked from memory that stays as it is, each a range of bytes that is there: nobody looks again.

    Attributes:
        base: The address that they are counted from.
        starts: Where each begins, in bytes from there, `[picked]`.
        ends: 0, and where each ends when they are laid one after another, `[picked + 1]`.
        memory: What they lie in: held until they are copied.
    """

    base: int
    starts: Index
    ends: Index
    memory: Any


def rows_of(kernels: Any, table: Bytes, at: Index) -> Rows:
    """Rows of a table, `[rows, bytes of a row]`, by their numbers, `[picked]`.

    Raises:
        IndexError: One of them is none of the table.
    """
    starts, ends = np.empty(len(at), np.int64), np.empty(len(at) + 1, np.int64)
    if not kernels.measure_rows(len(table), table.shape[1], _read_only(np.ascontiguousarray(at, np.int64)), starts, ends):
        raise IndexError(f"a row of {at.min()} to {at.max()} is out of range: there are {len(table)}.")
    return Rows(table.ctypes.data, starts, ends, table)


class Copy:
    """A copy under way: what is copied where, and how far it came.

    Args:
        kernels: `upshift.data.store.kernels`.
        rows: What is copied.
        out: Where to, `[bytes of all rows]`.
    """

    __slots__ = ("__weakref__", "_arguments", "_kernels", "_memory")

    def __init__(self, kernels: Any, rows: Rows, out: Bytes) -> None:
        self._kernels, self._memory = kernels, rows.memory
        count = len(rows.starts)
        step = max(_STEP_BYTES * count // max(len(out), 1), 1)
        state = np.zeros(kernels.DONE - (-count // step), np.int64)
        self._arguments = (np.uintp(rows.base), _read_only(rows.starts), _read_only(rows.ends), out, state, step)

    def help(self) -> None:
        """Copy what no other thread has taken."""
        self._kernels.copy_rows(*self._arguments, 0, 0)

    def need(self, first: int, end: int) -> None:
        """Copy along until the rows from `first` to `end` (not included) are there."""
        while self._kernels.copy_rows(*self._arguments, first, end) == self._kernels.NOT_YET:
            time.sleep(0)  # another thread has taken some, and the system lets it wait: let it go on


class Arriving(Later):
    """Rows of a copy under way.

    Args:
        copy: Which.
        out: Where its rows arrive, these alone: `[rows, ...]` of NumPy, or `[rows]` of Arrow.
        first: The number of the first of them in the copy.
    """

    __slots__ = ("_copy", "_first", "_out")

    def __init__(self, copy: Copy, out: Any, first: int) -> None:
        self._copy, self._out, self._first = copy, out, first

    @property
    def nbytes(self) -> int:
        """Of the rows."""
        found: int = self._out.nbytes
        return found

    def __len__(self) -> int:
        return len(self._out)

    def __getitem__(self, rows: slice) -> Arriving:
        return Arriving(self._copy, self._out[rows], self._first + rows.indices(len(self._out))[0])

    def made(self) -> Any:
        """The rows, all there."""
        if len(self._out):
            self._copy.need(self._first, self._first + len(self._out))
        return self._out


class _Helpers:
    """Threads of this process that copy what they are given, until the process ends.

    They do not keep what they have not begun: where they are late and whoever asked has done it alone, its memory is free.
    They must end before the interpreter does: one that lets go of mapped memory later would end the process with an abort.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[ref[Copy] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def ask(self, copy: Copy, threads: int) -> None:
        """Have a copy made by so many, while whoever asks goes on."""
        while len(self._threads) < threads:
            name = f"upshift-copy-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        for _ in range(threads):
            self._asked.put(ref(copy))

    def close(self) -> None:
        """Have the threads end; what they have not begun is left to whoever needs it."""
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join(_WAIT_SECONDS)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            copy = asked()
            if copy is not None:
                copy.help()
            del copy  # its memory is used again when nobody holds it


@lru_cache(maxsize=1)
def helpers() -> _Helpers:
    """Those of this process; they are started when they are first asked, and end with it."""
    found = _Helpers()
    atexit.register(found.close)
    return found


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels, compiled once for this machine; None where Numba is not installed, or has no place to keep them."""
    return kernels_of("upshift.data.store.kernels", "rows are copied")


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory, as the kernels know it."""
    view = values.view()
    view.flags.writeable = False
    return view
