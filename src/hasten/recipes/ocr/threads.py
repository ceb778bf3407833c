"""Threads for compiled kernels beside PyTorch's: the same ones.

PyTorch's threads wait for their next work by spinning, in the way of any others. Numba's kernels with GNU OpenMP run in
them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from hasten.recipes.needed import needed

_KERNELS = f"{__package__}.kernels_norm"


@lru_cache(maxsize=1)
def shares_threads() -> bool:
    """Whether kernels run in threads of OpenMP, as PyTorch does.

    Raises:
        MachineError: Numba is not installed.
    """
    needed(_KERNELS).sums(np.zeros((1, 1), np.uint16), np.zeros(1), 1)  # which threads Numba takes is settled by then
    return needed("numba").threading_layer() == "omp" and "backend: OpenMP" in torch.__config__.parallel_info()


def kernel_threads() -> int:
    """Let kernels that this thread calls use as many threads as PyTorch, or as many as Numba has.

    Raises:
        MachineError: Numba is not installed.
    """
    numba = needed("numba")
    threads: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != threads:
        numba.set_num_threads(threads)
    return threads
