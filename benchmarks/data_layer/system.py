"""The description of one system: how it yields epochs, what it reads, and which Hasten system it is compared with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Open: TypeAlias = Callable[[Path], Iterable[Any]]
"""Yields the batches of the data in a folder: one epoch per iteration, as in a training loop."""
Shuffle: TypeAlias = Literal["full", "window", "buffer", "chunks"]

SHUFFLES: dict[Shuffle, str] = {
    "full": "all samples with one another",
    "window": "blocks, then the samples of some of them with one another",
    "buffer": "files, then the samples of a buffer of 2,000",
    "chunks": "chunks, then the samples within each",
}


@dataclass(frozen=True, kw_only=True)
class System:
    """One way to produce the same batches, following its own documentation.

    Attributes:
        open: Opens its batches.
        files: The files it reads, in the folder of the workload.
        shuffle: How it mixes samples.
        against: The Hasten system with the same output and an at least equally thorough shuffle; empty for Hasten systems.
        needs: A required package; empty for none.
        reference: Shows the best that the machine can do; not usable for training on data larger than memory.
        own_samples: Its samples differ from those of the others, such as images decoded to other pixels.
    """

    open: Open
    files: tuple[str, ...]
    shuffle: Shuffle = "full"
    against: str = ""
    needs: str = ""
    reference: bool = False
    own_samples: bool = False

    @property
    def is_there(self) -> bool:
        """Whether its required package is installed."""
        return not self.needs or have(self.needs)


class Epochs:
    """Call a function again for each epoch.

    Args:
        make: Returns the batches of an epoch.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def have(package: str) -> bool:
    """Return whether a rival is installed."""
    return importlib.util.find_spec(package) is not None


def identity(batch: Any) -> Any:
    """Return a batch unchanged, for loaders that would convert everything to tensors."""
    return batch
