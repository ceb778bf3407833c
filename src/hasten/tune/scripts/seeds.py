"""Make a script's randomness repeat, and differ from pair to pair, whether it seeds itself or not."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hasten.core.seeding import seed_everything

MAX_NUMPY_SEED = 1 << 32


def seed_script(offset: int) -> None:
    """Seed the generators, and add `offset` to every seed that the script sets later; 0 leaves its own seeds as they are.

    Seeds of generators that the script makes for itself (`torch.Generator().manual_seed`, `numpy.random.default_rng`) stay.
    """
    seed_everything(offset)
    if not offset:
        return
    torch.manual_seed = torch.random.manual_seed = _shifted(torch.manual_seed, offset)
    random.seed = _shifted(random.seed, offset)
    np.random.seed = _shifted(np.random.seed, offset, MAX_NUMPY_SEED)


def _shifted(original: Callable[..., Any], offset: int, modulus: int = 0) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(value: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = (value + offset) % modulus if modulus else value + offset
        return original(value, *args, **kwargs)

    return seed
