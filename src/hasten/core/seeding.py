"""Make the randomness of a sample a pure function of (seed, epoch, index).

The number of workers, their speed and a resumed run then cannot change the numbers. The three generators that user code
draws from (`random`, `numpy.random`, `torch`) are seeded before each sample and restored after each batch, so the model's
own randomness (dropout) does not depend on the data's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

_MASK = (1 << 64) - 1

RandomState: TypeAlias = tuple[Any, Any, torch.Tensor]
"""The states of `random`, `numpy.random` and torch's CPU generator."""


def mix(*parts: int) -> int:
    """Mix integers into one 63-bit seed (SplitMix64, Steele et al. 2014, applied to each part in turn)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_sample(seed: int, epoch: int, index: int, salt: int = 0) -> None:
    """Seed the three generators for one sample. Call it within `kept_random_state`."""
    mixed = mix(seed, epoch, index, salt)
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)  # noqa: NPY002  user code draws from this legacy generator
    torch.default_generator.manual_seed(mixed)


def get_random_state() -> RandomState:
    """Return the states of the three generators."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def set_random_state(state: RandomState) -> None:
    """Restore the states of the three generators."""
    python, numpy, cpu = state
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the states of the three generators at the end of the block."""
    state = get_random_state()
    try:
        yield
    finally:
        set_random_state(state)


class KeptGenerators:
    """The states of the random generators before a piece of work, to repeat it. Only generators that it uses are copied.

    Args:
        device: The device of the model, whose generator is kept too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._python: Any = None
        self._numpy: Any = None
        self._uses_python = self._uses_numpy = True

    def keep(self) -> None:
        """Copy the states. Those of Python and NumPy take more than ten times as long as torch's."""
        self._torch = torch.get_rng_state()
        self._on_device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        if self._uses_python:
            self._python = random.getstate()
        if self._uses_numpy:
            self._numpy = np.random.get_state()  # noqa: NPY002

    def learn(self) -> None:
        """After the work, stop copying the states that it did not change."""
        self._uses_python = self._uses_python and self._python != random.getstate()
        now: Any = np.random.get_state()  # noqa: NPY002
        same = not self._uses_numpy or (self._numpy[2] == now[2] and np.array_equal(self._numpy[1], now[1]))
        self._uses_numpy = not same

    def put_back(self) -> None:
        """Restore the states."""
        torch.set_rng_state(self._torch)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)
        if self._uses_python:
            random.setstate(self._python)
        if self._uses_numpy:
            np.random.set_state(self._numpy)  # noqa: NPY002


def seed_everything(seed: int) -> None:
    """Seed the three generators and those of the accelerators for a run."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    torch.manual_seed(seed)


def hash_seeded(environ: Mapping[str, str], seed: int = 0) -> dict[str, str]:
    """Return an environment in which Python's hashes are seeded, unless they are already.

    Python orders a set of strings by hashes that differ in each process. Numbers that words get from such an order would
    differ between trials with the same seed, between ranks, and before and after a restart.
    """
    name = "PYTHONHASHSEED"
    seeded = environ.get(name) not in (None, "", "random")
    return dict(environ) if seeded else {**environ, name: str(seed % 2**32)}


def epoch_permutation(num_samples: int, seed: int, epoch: int) -> list[int]:
    """Return the order in which an epoch visits the samples, a pure function of its arguments."""
    generator = torch.Generator().manual_seed(mix(seed, epoch, num_samples))
    order: list[int] = torch.randperm(num_samples, generator=generator).tolist()
    return order
