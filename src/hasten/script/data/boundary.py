"""Test an epoch after a change: all samples change, and the batches must consist of the changed samples.

Tuning sees only part of an epoch, during which the data does not change. So this test makes a change in a forked copy of the
process: from then on the dataset returns different samples, as if the script had changed a transform; the samples of a list
change places. The next epoch is read once as PyTorch reads it and once under the plan, and both must give the same batches.
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
"""Number of batches that are compared."""
LIMIT_S = 60.0
"""Seconds after which the test is stopped."""


def after_a_change(loader: Any, planned: Callable[[], Any]) -> str:
    """Return how the first batches of an epoch after a change differ from the script's own; "" if they do not.

    Args:
        loader: The script's loader, which has no workers of its own.
        planned: Creates the iterator over the loader that the plan uses.
    """
    try:
        return run_in_fork(lambda: _tried(loader, planned), limit_s=LIMIT_S)[0]
    except (ForkError, OSError) as error:
        return f"an epoch after a change could not be tested: {error}"


def _tried(loader: Any, planned: Callable[[], Any]) -> str:
    """Run the test. It runs in a forked process, so it may change anything."""
    if why := _change(loader.dataset):
        return why
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


def _change(dataset: Any) -> str:
    """Make a dataset return different samples; return why that is impossible, or "" if it is done."""
    if isinstance(dataset, list):
        dataset[:] = [*dataset[1:], *dataset[:1]]
        return ""
    kind: Any = type(dataset)
    one, many = kind.__getitem__, getattr(kind, "__getitems__", None)
    try:
        kind.__getitem__ = lambda dataset, index: other(one(dataset, index))
    except TypeError:  # a built-in class
        return (
            f"an epoch after a change could not be tested: put the samples in a list or a Dataset, not in a {kind.__name__}"
        )
    if many is not None:
        kind.__getitems__ = lambda dataset, indices: [other(sample) for sample in many(dataset, indices)]
    return ""


def other(value: Any) -> Any:
    """Return a different sample of the same form: numbers are increased by one, booleans are negated."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return ~value if value.dtype in (torch.bool, np.bool_) else value + 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if type(value) in (list, tuple):
        return type(value)(map(other, value))
    return {key: other(item) for key, item in value.items()} if type(value) is dict else value
