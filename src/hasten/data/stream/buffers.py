"""Memory for batches that is used again once nobody looks at it.

Fresh memory for every batch of images costs more than filling it: the system clears each page first. A buffer given out
before may be filled anew when the last view of it is gone, which Python's reference count tells. So a batch stays valid as
long as anybody holds it or a tensor made of it, and still a loop that lets batches go works in the same few buffers.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_UNUSED = 3
"""References to a buffer that nobody but its list holds: the list's, the loop variable's, the argument's."""
_SMALLEST = 2**16
"""Bytes from which keeping a buffer pays."""


class Buffers:
    """Buffers of one stream. Safe for several threads.

    Args:
        most: Buffers kept of one size.
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
        """An array of this shape with any content, in memory that nobody else uses."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        rounded = 1 << (size - 1).bit_length()  # the short batch at the end fits the buffer of the others
        with self._guard:
            kept = self._kept.setdefault(rounded, [])
            # The view is taken within the lock: it is the reference that marks the buffer as used.
            for buffer in kept:
                if sys.getrefcount(buffer) <= _UNUSED:
                    return buffer[:size].view(dtype).reshape(shape)
            fresh = np.empty(rounded, np.uint8)
            if len(kept) < self._most:
                kept.append(fresh)
            return fresh[:size].view(dtype).reshape(shape)
