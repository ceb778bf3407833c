"""Gridded fields in memory, and windows of consecutive times that are views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil
import torch
from torch.utils.data import Dataset

from hasten.core.doing import doing
from hasten.core.errors import DataError
from hasten.data.cube.fields import Fields

_MEMORY_FRAC = 0.5
"""Largest fraction of the available memory for the fields."""


class Windows(Dataset[torch.Tensor]):
    """Consecutive times of fields; each item is a view `[window, channel, latitude, longitude]`.

    Args:
        values: All times, `[time, channel, latitude, longitude]`.
        starts: First time of each item.
        window: Times of an item.
    """

    def __init__(self, values: torch.Tensor, starts: Sequence[int], window: int) -> None:
        self.values, self.starts, self.window = values, starts, window

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[self.starts[index] : self.starts[index] + self.window]


def in_memory(fields: Fields) -> torch.Tensor:
    """Read all times, float32 `[time, channel, latitude, longitude]`.

    Raises:
        DataError: They do not fit into memory, or a variable has no values.
        CorruptError: A file is truncated or corrupt.
    """
    needed_bytes = 4 * len(fields) * math.prod(fields.shape)
    free_bytes = psutil.virtual_memory().available
    if needed_bytes > _MEMORY_FRAC * free_bytes:
        raise DataError(
            f"the fields need {needed_bytes / 2**30:.1f} GiB; {free_bytes / 2**30:.1f} GiB of memory are available, and "
            "half of it may be used. Set a smaller `grid` or fewer `variables`."
        )
    doing("reading and regridding the files")
    return fields.read(0, len(fields))
