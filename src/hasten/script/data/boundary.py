"""Try an epoch after a change: every sample becomes another, and the batches must be those of the new samples.

A tuning sees part of an epoch, in which nothing changes that a technique could have kept. So the change is made, in a forked
copy of the process: the dataset gives other samples from here on, as after a transform was changed. Its next epoch is begun
as PyTorch would, then as the plan does, and both must give the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hasten.core.seeding import get_random_state, set_random_state
from hasten.script.data.equality import difference
from hasten.script.data.fork import ForkError, run_in_fork

BATCHES = 2
LIMIT_S = 60.0


def after_a_change(loader: Any, planned: Callable[[], Any]) -> str:
    """How the first batches of an epoch after a change differ from those of the script; "" if they do not.

    Args:
        loader: The script's loader, which has no workers of its own.
        planned: Makes the iterator over the loader as the plan wants it.
    """
    try:
        return run_in_fork(lambda: _tried(loader, planned), limit_s=LIMIT_S)[0]
    except (ForkError, OSError) as error:
        return f"an epoch after a change could not be tried: {error}"


def _tried(loader: Any, planned: Callable[[], Any]) -> str:
    """Where this runs, everything may be touched."""
    _change(type(loader.dataset))
    own = [
        generator for generator in (loader.generator, getattr(loader.sampler, "generator", None)) if generator is not None
    ]
    before, states = get_random_state(), [generator.get_state() for generator in own]
    expected = list(islice(_SingleProcessDataLoaderIter(loader), BATCHES))
    set_random_state(before)
    for generator, state in zip(own, states, strict=True):
        generator.set_state(state)
    batches = planned()
    given = list(islice(batches, BATCHES))
    batches.stop()
    return difference(expected, given, "batches after a change")


def _change(kind: Any) -> None:
    """Let a class of datasets give other samples."""
    one, many = kind.__getitem__, getattr(kind, "__getitems__", None)
    kind.__getitem__ = lambda dataset, index: other(one(dataset, index))
    if many is not None:
        kind.__getitems__ = lambda dataset, indices: [other(sample) for sample in many(dataset, indices)]


def other(value: Any) -> Any:
    """Another sample of the same form: its numbers are one more, its truths are lies."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return ~value if value.dtype in (torch.bool, np.bool_) else value + 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if type(value) in (list, tuple):
        return type(value)(map(other, value))
    return {key: other(item) for key, item in value.items()} if type(value) is dict else value
