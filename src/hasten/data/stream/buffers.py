"""Reuse the memory of batches that are no longer referenced.

Allocating memory for every batch of images costs more than filling it, because the system clears each page first. A buffer
is reused when the last view of it is gone, according to Python's reference count. A batch therefore stays valid as long as
it, or a tensor made from it, is referenced, and a loop that releases its batches uses the same few buffers.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_UNUSED = 3
"""Number of references to a buffer that is not in use: its list's, the loop variable's, and the argument's."""
_SMALLEST = 2**16
"""Minimum size in bytes of buffers worth keeping."""


class Buffers:
    """Hold the buffers of one stream. Safe for use by several threads.

    Args:
        most: Maximum number of buffers kept per size.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["most"])  # type: ignore[misc]

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialized array of this shape, in memory that is not in use."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        rounded = 1 << (size - 1).bit_length()  # a short last batch fits the same buffer
        with self._guard:
            kept = self._kept.setdefault(rounded, [])
            # The view is created with the lock held, because its reference marks the buffer as used.
            for buffer in kept:
                if sys.getrefcount(buffer) <= _UNUSED:
                    return buffer[:size].view(dtype).reshape(shape)
            fresh = np.empty(rounded, np.uint8)
            if len(kept) < self._most:
                kept.append(fresh)
            return fresh[:size].view(dtype).reshape(shape)
