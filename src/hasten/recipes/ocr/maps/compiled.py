"""How a kernel is compiled: once for this machine, kept on disk, without Python's lock while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def kernel(function: Kernel) -> Kernel:
    """Compile a function when it is first called, with what Numba finds on disk.

    A division by zero gives infinity, as in NumPy. Nothing is reordered or fused: numbers are those that are written.
    """
    return cast("Kernel", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def parallel_kernel(function: Kernel) -> Kernel:
    """The same for a function with `numba.prange` in it, whose parts run in the threads that Numba uses.

    With GNU OpenMP, which Numba takes where it finds it, these are the threads of PyTorch.
    """
    return cast("Kernel", numba.njit(cache=True, nogil=True, parallel=True, error_model="numpy")(function))
