"""Foresee which batches a sampler is going to give, without moving it or any random generator of the script.

A copy of the sampler is run in a world of its own: the generators of the process are put back after each look ahead, and
those that the sampler holds are copied. Whoever uses what was foreseen holds it against what the sampler then really gives,
so that a wrong guess costs time and nothing else.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hasten.core.errors import JobError
from hasten.core.seeding import RandomState, get_random_state, set_random_state

AT_ONCE = 32
"""Batches that are looked ahead in one go."""
MAX_BYTES = 1 << 26
SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Of torch: what they do when they are copied and run is known."""
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


class NotForeseenError(JobError):
    """What a sampler will give cannot be told ahead."""


class Foreseen:
    """The indices that a sampler is going to give, in order.

    Args:
        sampler: Gives indices, or lists of them.
        dataset: Whose indices; a sampler that reads more of it than its length cannot be run ahead.

    Raises:
        NotForeseenError: The sampler cannot be copied; says why.
    """

    def __init__(self, sampler: Any, dataset: Any) -> None:
        self._copies = _Copies(dataset)
        self._world: _World | None = None
        self._ready: deque[Any] = deque()
        self._ended = False
        copied = self._copies.of(sampler)
        with self._in_its_world():  # a sampler may draw its whole order here
            self._iterator = iter(copied)

    def begin(self) -> None:
        """Look ahead from the state that all generators have now: just before the sampler's first index is taken."""
        self._world = None
        self._copies.follow()

    def peek(self, count: int) -> list[Any]:
        """The next so many, or fewer where it ends; they stay to be taken."""
        while len(self._ready) < count and not self._ended:
            self._look()
        return list(islice(self._ready, count))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.peek(1):
            raise StopIteration
        return self._ready.popleft()

    def _look(self) -> None:
        with self._in_its_world():
            found = list(islice(self._iterator, AT_ONCE))
        self._ended = len(found) < AT_ONCE
        self._ready.extend(found)

    @contextmanager
    def _in_its_world(self) -> Iterator[None]:
        outside = _World()
        try:
            if self._world is not None:
                self._world.enter()
            yield
            self._world = _World()
        finally:
            outside.enter()


class _World:
    """The states that all random generators of the process had when it was made."""

    def __init__(self) -> None:
        self._state: RandomState = get_random_state()
        devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._devices = [(generator, generator.get_state()) for generator in devices]

    def enter(self) -> None:
        """Put them back to it."""
        set_random_state(self._state)
        for generator, state in self._devices:
            generator.set_state(state)


class _Copies:
    """Copies samplers, with the generators they hold."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._generators: dict[int, tuple[torch.Generator, torch.Generator]] = {}

    def of(self, sampler: Any) -> Any:
        """A copy that may be run."""
        if type(sampler) in (list, tuple, range):
            return sampler
        if type(sampler) is BatchSampler:
            copied: Any = copy.copy(sampler)
            copied.sampler = self.of(sampler.sampler)
            return copied
        if type(sampler) in SAMPLERS:
            copied = copy.copy(sampler)
            if getattr(copied, "generator", None) is not None:
                copied.generator = self.generator(copied.generator)
            return copied
        return self._pickled(sampler)

    def generator(self, own: torch.Generator) -> torch.Generator:
        """The copy of a generator, the same for all who hold it."""
        if id(own) not in self._generators:
            self._generators[id(own)] = (own, torch.Generator(device=own.device))
            self.follow()
        return self._generators[id(own)][1]

    def follow(self) -> None:
        """Put the copied generators where their originals are."""
        for own, copied in self._generators.values():
            copied.set_state(own.get_state())

    def _pickled(self, sampler: Any) -> Any:
        """A copy of a sampler that is not torch's, of all it holds but the dataset, functions and classes."""
        data, kept = _Bounded(), list[Any]()
        try:
            _Pickler(data, self, self._dataset, kept).dump(sampler)
            return _Unpickler(data.getvalue(), kept).load()
        except NotForeseenError:
            raise
        except Exception as error:
            raise NotForeseenError(f"{_name(sampler)} cannot be copied to be run ahead: {error}") from error


class _Pickler(pickle.Pickler):
    """Pickles what belongs to a sampler, and refers to the rest."""

    def __init__(self, data: io.BytesIO, copies: _Copies, dataset: Any, kept: list[Any]) -> None:
        super().__init__(data, protocol=pickle.HIGHEST_PROTOCOL)
        self._copies, self._dataset, self._kept = copies, dataset, kept

    def persistent_id(self, value: Any) -> int | None:
        """Where in the list of what is not copied a value stands; None for what is."""
        if type(value) in _PLAIN:
            return None
        if isinstance(value, torch.nn.Module | Optimizer):
            raise NotForeseenError(f"the sampler looks at the {type(value).__name__} that is trained")
        if isinstance(value, Dataset) or value is self._dataset:
            return self._keep(_OnlyLength(value))
        if isinstance(value, torch.Generator):
            return self._keep(self._copies.generator(value))
        if isinstance(value, type | FunctionType | ModuleType | np.memmap):
            return self._keep(value)
        return None

    def _keep(self, value: Any) -> int:
        self._kept.append(value)
        return len(self._kept) - 1


class _Unpickler(pickle.Unpickler):
    """Makes the copy, with what was referred to in its place."""

    def __init__(self, data: bytes, kept: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._kept = kept

    def persistent_load(self, place: int) -> Any:
        """What was referred to."""
        return self._kept[place]


class _Bounded(io.BytesIO):
    """Memory for the copy of a sampler, which must be small."""

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MAX_BYTES:
            raise NotForeseenError(f"the sampler holds more than {MAX_BYTES >> 20} MiB, too much to copy at every epoch")
        return super().write(data)


class _OnlyLength:
    """Stands for the dataset in a copied sampler: it may be asked for its length, and not be read or changed."""

    def __init__(self, dataset: Any) -> None:
        vars(self)["_of"] = dataset

    def __len__(self) -> int:
        return len(vars(self)["_of"])

    def __getattr__(self, name: str) -> Any:
        raise NotForeseenError(f"the sampler uses `{name}` of the dataset")

    def __setattr__(self, name: str, value: Any) -> None:
        raise NotForeseenError(f"the sampler sets `{name}` of the dataset")

    def __getitem__(self, index: Any) -> Any:
        raise NotForeseenError("the sampler reads the dataset")


def same_index(foreseen: Any, given: Any) -> bool:
    """Whether a sampler gave what was foreseen."""
    try:
        if isinstance(foreseen, torch.Tensor):
            return isinstance(given, torch.Tensor) and torch.equal(foreseen, given)
        if isinstance(foreseen, np.ndarray):
            return isinstance(given, np.ndarray) and np.array_equal(foreseen, given)
        return bool(foreseen == given)
    except Exception:  # noqa: BLE001 - indices of a kind that cannot be compared
        return False


def draws_at_start(sampler: Any) -> bool:
    """Whether a sampler draws all its random numbers with its first index, so that how far it is read ahead is no matter."""
    if type(sampler) is BatchSampler:
        return draws_at_start(sampler.sampler)
    return type(sampler) in (*SAMPLERS, list, tuple, range) and getattr(sampler, "generator", None) is None


def _name(sampler: Any) -> str:
    return f"the sampler {type(sampler).__name__}"
