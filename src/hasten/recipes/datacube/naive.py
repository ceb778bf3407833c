"""The forecasting job as it is usually written: the baseline for measuring gains.

Each visit opens the files and interpolates its window with xarray in float64; compare it with `method = "bilinear"`.
Attention is written out as softmax of a product. Everything else is that of `hasten.recipes.datacube.job`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from hasten.data.cube.fields import Fields
from hasten.data.cube.regrid import Grid
from hasten.recipes.datacube.job import DatacubeJob
from hasten.recipes.datacube.model import Block, SelfAttention
from hasten.recipes.datacube.quantities import is_global
from hasten.recipes.needed import needed


class NaiveDatacubeJob(DatacubeJob):
    """Forecasting written naively. Put it before your own job: `class NaiveWeather(NaiveDatacubeJob, Weather)`."""

    forms = (DatacubeJob,)

    def model(self) -> nn.Module:
        """Create the network, with attention written out."""
        model = super().model()
        for block in model.modules():
            if isinstance(block, Block):
                block.attention = _plain(block.attention)
                if block.in_time:
                    block.time_attention = _plain(block.time_attention)
        return model

    def train_data(self) -> Dataset[Any]:
        """Return the windows of the training times, read and interpolated at each visit."""
        return InterpolatedWindows(self.fields, *self.train_windows())

    def valid_data(self) -> Dataset[Any]:
        """Return the windows of the held-out times, read and interpolated at each pass."""
        return InterpolatedWindows(self.fields, *self.valid_windows())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01)

    def collate(self, samples: list[Any]) -> torch.Tensor:
        """Stack the windows in float64, then convert them."""
        return torch.from_numpy(np.stack([np.asarray(sample, dtype=np.float64) for sample in samples])).float()


class InterpolatedWindows(Dataset[torch.Tensor]):
    """Consecutive times, opened, read and interpolated by xarray, float64 `[window, channel, latitude, longitude]`.

    Args:
        fields: What to read.
        starts: First time of each item.
        window: Times of an item.
    """

    def __init__(self, fields: Fields, starts: Sequence[int], window: int) -> None:
        self.fields, self.starts, self.window = fields, starts, window

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        xarray = needed("xarray", extra="datacube")
        first = self.starts[index]
        grid, channels = self.fields.grid, []
        for variable in self.fields.variables:
            latitude, longitude = (axis.name for axis in variable.axes[-2:])
            parts, begin = [], 0
            for stored in self.fields.cube.files(variable.name):
                times = stored.shape[0]
                low, high = max(first - begin, 0), min(first + self.window - begin, times)
                if low < high:
                    with xarray.open_dataset(stored.path, decode_times=False) as data:
                        parts.append(data[variable.name][low:high].astype("float64").load())
                begin += times
            array = xarray.concat(parts, variable.axes[0].name)
            if is_global(Grid(tuple(variable.axes[-2].values), tuple(variable.axes[-1].values))):
                turns = [array.assign_coords({longitude: array[longitude] + turn}) for turn in (-360.0, 0.0, 360.0)]
                array = xarray.concat(turns, longitude)
            rows = np.clip(grid.latitude, variable.axes[-2].values.min(), variable.axes[-2].values.max())
            values = array.interp({latitude: rows, longitude: list(grid.longitude)}).values
            channels.append(values.reshape(self.window, -1, *grid.shape))
        return torch.from_numpy(np.concatenate(channels, axis=1))


class PlainAttention(SelfAttention):
    """Attention that keeps the whole matrix of probabilities."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, tokens, width]` to the same shape."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        chance = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1)
        out: torch.Tensor = self.out((chance @ value).transpose(1, 2).flatten(2))
        return out


def _plain(attention: SelfAttention) -> PlainAttention:
    plain = PlainAttention(attention.qkv.in_features, attention.heads)
    plain.load_state_dict(attention.state_dict())
    return plain
