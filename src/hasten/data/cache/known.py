"""What is known about a dataset and a model once, and need not be found out again: lengths, statistics, validation results.

Another process, or another machine where the cache is in Redis, finds what the first one found out. The keys hold the
content of the weights and the source of the function that measures; the dataset is named by a version, since nothing else
tells cheaply what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hasten.core.errors import DataError
from hasten.data.cache.contract import MISSING, Cache
from hasten.data.cache.keys import code_of, key_of


def known_metadata(
    dataset: Any, describe: Callable[[Any], Mapping[str, float]], cache: Cache, *, version: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Numbers about each sample of a map-style dataset: lengths, sizes, classes.

    Args:
        dataset: Samples by number.
        describe: Gives the numbers of a sample, under the same names for all.
        cache: Where they are kept.
        version: Names the dataset: another one is another dataset.

    Returns:
        By name, one number a sample, [samples].

    Raises:
        DataError: The version is empty, or samples have different names.
    """
    key = _key("metadata", version, describe, len(dataset))
    found = cache.get(key)
    if found is MISSING:
        rows = [dict(describe(dataset[index])) for index in range(len(dataset))]
        if any(row.keys() != rows[0].keys() for row in rows):
            raise DataError("describe must give the same names for every sample.")
        names = rows[0] if rows else {}
        found = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}
        cache.put(key, found)
    numbers: dict[str, npt.NDArray[np.float64]] = found
    return numbers


def known_validation(
    model: nn.Module, validate: Callable[[nn.Module], Mapping[str, float]], cache: Cache, *, version: str
) -> dict[str, float]:
    """What a validation gives for these very weights.

    Args:
        model: Its parameters and buffers, and its mode (training or not), are part of the key.
        validate: Measures it; deterministic.
        cache: Where results are kept.
        version: Names the held-out data.

    Raises:
        DataError: The version is empty.
    """
    weights = {name: tensor for name, tensor in model.state_dict().items() if hasattr(tensor, "detach")}
    key = _key("validation", version, validate, weights, model.training, repr(model))
    found = cache.get(key)
    if found is MISSING:
        found = {name: float(value) for name, value in validate(model).items()}
        cache.put(key, found)
    results: dict[str, float] = found
    return results


def _key(what: str, version: str, function: Callable[..., Any], *parts: Any) -> str:
    if not version:
        raise DataError("version must not be empty: it is what tells this dataset from another.")
    return key_of(what, version, code_of(function), *parts)
