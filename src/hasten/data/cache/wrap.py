"""Wrap functions, datasets, their metadata, and validations in a cache.

Keys contain the content of arguments and weights, and the source of the function that computes a value. A dataset is
identified by a version, because its content cannot be hashed cheaply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn
from torch.utils.data import Dataset

from hasten.core.errors import DataError
from hasten.data.cache.contract import MISSING, Cache
from hasten.data.cache.keys import code_of, key_of

Given = ParamSpec("Given")
Out = TypeVar("Out")


def cached(cache: Cache, *, version: str | None = None) -> Callable[[Callable[Given, Out]], Callable[Given, Out]]:
    """Cache the results of a deterministic function.

    The key contains the arguments by content, and the function's source or, if given, the version. Use a version to cover
    other things that the result depends on, such as functions it calls or files it reads, and change it with them.

    Args:
        cache: Where results are stored.
        version: Replaces the function's source in the key; None uses the source.
    """

    def around(function: Callable[Given, Out]) -> Callable[Given, Out]:
        name = f"{function.__module__}.{function.__qualname__}"
        code = key_of(version) if version is not None else code_of(function)

        @functools.wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Out:
            key = key_of(name, code, args, kwargs)
            stored = cache.get(key)
            if stored is not MISSING:
                result: Out = stored
                return result
            value = function(*args, **kwargs)
            cache.put(key, value)
            return value

        return call

    return around


class CachedDataset(Dataset[Any]):
    """Cache the samples of a map-style dataset after their first preparation.

    Apply it before any random step: a sample is the same every time it is read.

    Args:
        dataset: Dataset that returns samples by index, `dataset[i]`. Its `__getitems__` is used if it has one.
        cache: Where samples are stored.
        version: Identifies the dataset and everything its samples depend on, including code. Change it when they change.

    Raises:
        DataError: The dataset has no length, or the version is empty.
    """

    def __init__(self, dataset: Any, cache: Cache, *, version: str) -> None:
        if not hasattr(dataset, "__len__"):
            raise DataError("the dataset has no length: use a map-style dataset.")
        if not version:
            raise DataError("version must not be empty: it tells the samples of different datasets apart.")
        self.dataset, self.cache = dataset, cache
        self._prefix = key_of("dataset", version, len(dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Return a sample, from the cache or newly prepared."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples in one call, as PyTorch's DataLoader requests them."""
        keys = [f"{self._prefix}-{int(index) % len(self)}" for index in indices]
        samples = self.cache.get_many(keys)
        missing = [number for number, value in enumerate(samples) if value is MISSING]
        if missing:
            made = self._prepared([indices[number] for number in missing])
            for number, sample in zip(missing, made, strict=True):
                samples[number] = sample
            self.cache.put_many({keys[number]: samples[number] for number in missing})
        return samples

    def _prepared(self, indices: Sequence[int]) -> list[Any]:
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:
            made: list[Any] = several(list(indices))
            return made
        return [self.dataset[index] for index in indices]


def known_metadata(
    dataset: Any, describe: Callable[[Any], Mapping[str, float]], cache: Cache, *, version: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Compute numbers for each sample of a map-style dataset once, such as lengths, sizes or classes.

    Args:
        dataset: Dataset that returns samples by index.
        describe: Returns the numbers of a sample by name, with the same names for all samples.
        cache: Where the numbers are stored.
        version: Identifies the dataset. Change it when the dataset changes.

    Returns:
        For each name, one number per sample, [samples].

    Raises:
        DataError: The version is empty, or samples have different names.
    """
    key = _named_key("metadata", version, describe, len(dataset))
    found = cache.get(key)
    if found is MISSING:
        rows = [dict(describe(dataset[index])) for index in range(len(dataset))]
        if any(row.keys() != rows[0].keys() for row in rows):
            raise DataError("describe must return the same names for every sample.")
        names = rows[0] if rows else {}
        found = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}
        cache.put(key, found)
    numbers: dict[str, npt.NDArray[np.float64]] = found
    return numbers


def known_validation(
    model: nn.Module, validate: Callable[[nn.Module], Mapping[str, float]], cache: Cache, *, version: str
) -> dict[str, float]:
    """Validate a model once for the same weights.

    Args:
        model: Its parameters, buffers and mode (training or not) are part of the key.
        validate: Deterministic function that measures the model.
        cache: Where results are stored.
        version: Identifies the held-out data.

    Raises:
        DataError: The version is empty.
    """
    weights = {name: tensor for name, tensor in model.state_dict().items() if hasattr(tensor, "detach")}
    key = _named_key("validation", version, validate, weights, model.training, repr(model))
    found = cache.get(key)
    if found is MISSING:
        found = {name: float(value) for name, value in validate(model).items()}
        cache.put(key, found)
    results: dict[str, float] = found
    return results


def _named_key(what: str, version: str, function: Callable[..., Any], *parts: Any) -> str:
    if not version:
        raise DataError("version must not be empty: it tells different datasets apart.")
    return key_of(what, version, code_of(function), *parts)
