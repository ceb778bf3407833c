"""Windows of consecutive times, read from the files when they are asked for.

    windows = CubeWindows(Fields(open_cube(paths), grid=(64, 64)), length=12)
    windows[0]["fields"]      # float32 [12, channel, latitude, longitude]

This is for a first look, and for data that is read once. What is trained on for several epochs is read faster from a store:
`hasten data convert`, then `Stream(store, length=12, columns=["fields"])`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from hasten.core.errors import DataError
from hasten.data.cube.fields import Fields


class CubeWindows(Dataset[dict[str, Any]]):
    """Windows of a cube as a map-style dataset. It can be sent to the workers of a DataLoader.

    Args:
        fields: What to read.
        length: Times of a window.
        stride: Times between the starts of two windows.

    Raises:
        DataError: There are fewer times than a window has.
    """

    def __init__(self, fields: Fields, *, length: int, stride: int = 1) -> None:
        if length < 1 or stride < 1:
            raise DataError(f"length and stride of windows must be at least 1, not {length} and {stride}.")
        if len(fields) < length:
            raise DataError(f"the files have {len(fields):,} times, fewer than one window of {length:,}.")
        self.fields, self._length, self._stride = fields, length, stride

    def __len__(self) -> int:
        """Return the number of windows."""
        return (len(self.fields) - self._length) // self._stride + 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a window: `fields` float32 [length, channel, latitude, longitude], and `time` as stored [length]."""
        start = range(len(self))[index] * self._stride
        stop = start + self._length
        return {"fields": self.fields.read(start, stop), "time": torch.from_numpy(self.fields.times[start:stop].copy())}
