"""What one system is: how it gives epochs, what it reads, and what of ours it is held against."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Open: TypeAlias = Callable[[Path], Iterable[Any]]
"""What gives the batches of the data below a folder: an epoch each time it is iterated over, as a training loop does."""
Shuffle: TypeAlias = Literal["full", "window", "buffer", "chunks"]

SHUFFLES: dict[Shuffle, str] = {
    "full": "all samples with one another",
    "window": "blocks, then the samples of some of them with one another",
    "buffer": "files, then the samples of a buffer of 2,000",
    "chunks": "chunks, then the samples within each",
}


@dataclass(frozen=True, kw_only=True)
class System:
    """One way to the same batches, as its own documentation shows it.

    Attributes:
        open: Its batches.
        files: What it reads, below the folder of the workload.
        shuffle: Which samples it mixes with which.
        against: The one of ours that gives the same form with a shuffle at least as thorough; empty for one of ours.
        needs: A package that must be installed; empty for none.
        reference: It shows what the machine can do at best, and is no way to train on data larger than memory.
        own_samples: Its samples are not those of the others, such as images decoded to other pixels.
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
        """Whether what it needs is installed."""
        return not self.needs or have(self.needs)


class Epochs:
    """What a function gives, anew each time.

    Args:
        make: The batches of an epoch.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def have(package: str) -> bool:
    """Whether a rival is installed."""
    return importlib.util.find_spec(package) is not None


def identity(batch: Any) -> Any:
    """A batch as it is: for loaders that would make tensors of everything."""
    return batch
