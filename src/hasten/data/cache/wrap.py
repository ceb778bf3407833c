"""Caches around what people have: functions, datasets, their metadata, and validations.

Keys hold the content of arguments and weights and the source of the function that computes a value. A dataset is named by a
version, since nothing else tells cheaply what it holds.
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
    """Keep what a deterministic function returns.

    The key holds the function's source, its arguments by content, and the version. Change the version when something else
    that the function depends on has changed: a function it calls, a file it reads.

    Args:
        cache: Where values are kept.
        version: Of what the source does not tell; None where the source tells all.
    """

    def around(function: Callable[Given, Out]) -> Callable[Given, Out]:
        name = f"{function.__module__}.{function.__qualname__}"
        code = key_of(version) if version is not None else code_of(function)

        @functools.wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Out:
            key = key_of(name, code, args, kwargs)
            found = cache.get(key)
            if found is not MISSING:
                kept: Out = found
                return kept
            value = function(*args, **kwargs)
            cache.put(key, value)
            return value

        return call

    return around


class CachedDataset(Dataset[Any]):
    """A map-style dataset whose samples are kept after they were prepared once.

    Put it before anything random: what is kept is the same at every visit.

    Args:
        dataset: Samples by number, `dataset[i]`; with `__getitems__`, several at once where it has that.
        cache: Where samples are kept.
        version: Names the dataset and all that its samples depend on, the code included: another one is another dataset.

    Raises:
        DataError: The dataset has no length, or the version is empty.
    """

    def __init__(self, dataset: Any, cache: Cache, *, version: str) -> None:
        if not hasattr(dataset, "__len__"):
            raise DataError("only a dataset with a length has samples by number: give a map-style dataset.")
        if not version:
            raise DataError("version must not be empty: it is what tells this dataset's samples from another's.")
        self.dataset, self.cache = dataset, cache
        self._prefix = key_of("dataset", version, len(dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """A sample: from the cache, or prepared and kept."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once: what PyTorch's DataLoader asks for where it can."""
        keys = [f"{self._prefix}-{int(index) % len(self)}" for index in indices]
        found = self.cache.get_many(keys)
        missing = [number for number, value in enumerate(found) if value is MISSING]
        if missing:
            made = self._prepared([indices[number] for number in missing])
            for number, sample in zip(missing, made, strict=True):
                found[number] = sample
            self.cache.put_many({keys[number]: found[number] for number in missing})
        return found

    def _prepared(self, indices: Sequence[int]) -> list[Any]:
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:
            made: list[Any] = several(list(indices))
            return made
        return [self.dataset[index] for index in indices]


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
    key = _named_key("metadata", version, describe, len(dataset))
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
    key = _named_key("validation", version, validate, weights, model.training, repr(model))
    found = cache.get(key)
    if found is MISSING:
        found = {name: float(value) for name, value in validate(model).items()}
        cache.put(key, found)
    results: dict[str, float] = found
    return results


def _named_key(what: str, version: str, function: Callable[..., Any], *parts: Any) -> str:
    if not version:
        raise DataError("version must not be empty: it is what tells this dataset from another.")
    return key_of(what, version, code_of(function), *parts)
