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

from hasten.data.cube.fields import Fields


class CubeWindows(Dataset[dict[str, Any]]):
    """Windows of a cube as a map-style dataset, none across a gap in time. Workers of a DataLoader can use it.

    Args:
        fields: What to read.
        length: Times of a window.
        stride: Times between the starts of two windows.

    Raises:
        DataError: There is no such window.
    """

    def __init__(self, fields: Fields, *, length: int, stride: int = 1) -> None:
        self.fields, self._length = fields, length
        self._starts = fields.starts(length, stride=stride)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a window: `fields` float32 [length, channel, latitude, longitude], and `time`, float64 [length]."""
        start = self._starts[index]
        stop = start + self._length
        return {"fields": self.fields.read(start, stop), "time": torch.from_numpy(self.fields.times[start:stop].copy())}
