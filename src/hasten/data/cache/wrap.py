"""Caches around what people have: functions and datasets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

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
