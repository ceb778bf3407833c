"""Values that are not there yet: those of several batches are picked at once, and made when each is asked for."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any


class Later:
    """Rows of a column that will be there when they are asked for; a slice of them is one too."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Rows."""

    @abstractmethod
    def __getitem__(self, rows: slice) -> Later:
        """Some of the rows, without making any."""

    @abstractmethod
    def made(self) -> Any:
        """The values, [rows]."""


def made(values: Any) -> Any:
    """Values that are there: as they are, or once they are made."""
    return values.made() if isinstance(values, Later) else values
