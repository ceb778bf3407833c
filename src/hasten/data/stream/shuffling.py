"""The shuffle of NumPy's generators, number for number, and several times as fast where Numba is at hand.

An epoch of small samples is over in milliseconds, and none is copied while its order is drawn. Half of NumPy's time goes
into guessing wrongly whether a number that was drawn is small enough to be taken; the kernel does not guess.
"""

from __future__ import annotations

import logging
import sys
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.data.kernels import kernels_of

Numbers = npt.NDArray[np.int64]
_LOG = logging.getLogger(__name__)
_WORTH = 2**12
"""Numbers from which the kernel is faster, with what surrounds it."""
_DRAWN_FRAC = 0.72
"""Draws of 64 bits for each number, at first: each gives two of 32, of which 2 ln 2 are needed on average."""


def shuffle(generator: np.random.Generator, values: Numbers) -> None:
    """Shuffle in place, as `generator.shuffle` does; the generator is of no use afterwards."""
    if _WORTH <= len(values) < 2**32 and "numba" in sys.modules and (kernel := _kernel()) is not None:
        _by_kernel(kernel, generator, values)
    else:
        generator.shuffle(values)


def _by_kernel(kernel: Any, generator: np.random.Generator, values: Numbers) -> None:
    left = len(values) - 1
    while left > 0:
        drawn = generator.bit_generator.random_raw(int(left * _DRAWN_FRAC) + 64)
        # NumPy takes the lower half of a draw first.
        left = kernel.shuffle_on(values, left, np.asarray(drawn, "<u8").view("<u4"))


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The kernel, compiled once for this machine; None where it cannot be, or NumPy shuffles in another way than it does."""
    kernel = kernels_of("hasten.data.stream.shuffle_kernel", "orders are drawn")
    if kernel is None:
        return None
    ours, theirs = np.arange(_WORTH), np.arange(_WORTH)
    _by_kernel(kernel, np.random.Generator(np.random.Philox(1)), ours)
    np.random.Generator(np.random.Philox(1)).shuffle(theirs)
    if not np.array_equal(ours, theirs):
        _LOG.info("orders are drawn without the kernel: NumPy %s shuffles in another way", np.__version__)
        return None
    return kernel
