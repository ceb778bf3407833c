"""The forecasting job: the next hours of gridded fields from the last ones.

    class Weather(DatacubeJob):
        files = ("january.nc", "february.nc")

    class NaiveWeather(NaiveDatacubeJob, Weather):  # the baseline: `hasten tune weather.py:NaiveWeather` shows the gain
        forms = (Weather,)

Files are read and regridded once, and windows are views of the result. Errors are measured on the last part of the time,
relative to persistence, which forecasts that nothing changes: an error of 1 is as bad as persistence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hasten.core.errors import DataError, JobError
from hasten.core.job import Gathered, Job, Quality
from hasten.data.cube.cube import Cube
from hasten.data.cube.fields import Fields
from hasten.data.cube.open import open_cube
from hasten.data.cube.regrid import Method
from hasten.recipes.datacube.augment import Augmentation, Augmenter
from hasten.recipes.datacube.constraints import Constraints
from hasten.recipes.datacube.data import Windows, in_memory
from hasten.recipes.datacube.model import Attention, Forecaster, SpaceTimeTransformer, UNet
from hasten.recipes.datacube.synth import DrawnCube, drawn_file
from hasten.recipes.schedule import warmup_cosine

_SQUARES = "squares"


class DatacubeJob(Job):
    """Forecasts of your own NetCDF files: subclass it, set your files, and tune it.

    Attributes:
        files: The files; several are joined along time. None generates an atmosphere.
        variables: Names of the variables to read and forecast; None takes all.
        grid: Latitudes and longitudes to regrid to; multiples of `patch`.
        method: How values are regridded: see `hasten.data.cube.regrid`.
        num_in: Time steps that the network receives.
        num_out: Time steps that it forecasts.
        network: `transformer` or `unet`.
        attention: `factorised` in space and time, or `joint`: see `hasten.recipes.datacube.model.Block`.
        patch: Side of a patch of the transformer in grid cells.
        width: Width of a token, or channels of the U-Net's finest level.
        depth: Blocks of the transformer, or levels of the U-Net.
        heads: Attention heads of the transformer.
        checkpoint_frac: Fraction of the blocks whose activations are recomputed to save memory; 0 is off.
        augmentation: Changes of training samples, with their units. The default changes nothing.
        constraints: Weights of physical constraints that are added to the loss, such as `{"humidity": 0.1}`: see
            `hasten.recipes.datacube.constraints`. None by default.
        valid_frac: Last fraction of the times, held out.
        rate: Peak learning rate.
        warmup_frac: Fraction of the run in which the rate rises; then it falls along a half cosine.
        drawn: The atmosphere to generate if `files` is None.
    """

    files: ClassVar[Sequence[str] | None] = None
    variables: ClassVar[Sequence[str] | None] = None
    grid: ClassVar[tuple[int, int]] = (32, 64)
    method: ClassVar[Method] = "auto"
    num_in: ClassVar[int] = 4
    num_out: ClassVar[int] = 1
    network: ClassVar[Literal["transformer", "unet"]] = "transformer"
    attention: ClassVar[Attention] = "factorised"
    patch: ClassVar[int] = 4
    width: ClassVar[int] = 96
    depth: ClassVar[int] = 4
    heads: ClassVar[int] = 4
    checkpoint_frac: ClassVar[float] = 0.0
    augmentation: ClassVar[Augmentation] = Augmentation()
    constraints: ClassVar[Mapping[str, float]] = {}
    valid_frac: ClassVar[float] = 0.2
    rate: ClassVar[float] = 1e-3
    warmup_frac: ClassVar[float] = 0.1
    drawn: ClassVar[DrawnCube] = DrawnCube()

    batch_size = 8
    epochs = 20
    quality = Quality(metric="error", direction="min", margin=0.02)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Clear `forms` of a subclass that does not set its own: inherited forms would train on other files."""
        super().__init_subclass__(**settings)
        if "forms" not in vars(cls):
            cls.forms = ()

    @cached_property
    def cube(self) -> Cube:
        """The opened files."""
        if self.files is None:
            return open_cube([drawn_file(self.drawn)], variables=self.variables)
        if isinstance(self.files, str):
            raise JobError(f"{type(self).__name__}.files must be a list of files, not the text {self.files!r}.")
        return open_cube([Path(file) for file in self.files], variables=self.variables)

    @cached_property
    def fields(self) -> Fields:
        """The files on the grid of the job, read when asked for."""
        return Fields(self.cube, grid=self.grid, method=self.method)

    @cached_property
    def values(self) -> torch.Tensor:
        """All times, read once, float32 `[time, channel, latitude, longitude]`."""
        return in_memory(self.fields)

    def times(self) -> tuple[int, int]:
        """Return the first held-out time, and the number of times.

        Raises:
            DataError: There are too few times for both parts.
        """
        total, window = len(self.fields), self.num_in + self.num_out
        cut = total - round(self.valid_frac * total)
        if min(cut, total - cut) < window:
            raise DataError(
                f"{cut} times to train on and {total - cut} held out are too few for windows of {window} times "
                "(num_in + num_out). Give more files, or change valid_frac."
            )
        return cut, total

    def model(self) -> nn.Module:
        """Create the network, normalized by the training times.

        Raises:
            JobError: A setting does not fit.
        """
        sizes: dict[str, Any] = {"channels": len(self.fields.channels), "grid": self.grid, "num_in": self.num_in}
        sizes |= {"num_out": self.num_out, "width": self.width, "depth": self.depth}
        sizes |= {"checkpoint_frac": self.checkpoint_frac}
        network: nn.Module
        if self.network == "transformer":
            network = SpaceTimeTransformer(**sizes, patch=self.patch, heads=self.heads, attention=self.attention)
        elif self.network == "unet":
            network = UNet(**sizes)
        else:
            raise JobError(f"{type(self).__name__}.network must be 'transformer' or 'unet', not {self.network!r}.")
        values = self.values[: self.times()[0]].numpy()
        mean, std = self.statistics
        change = np.nanstd(np.diff(values, axis=0), axis=(0, 2, 3))
        tiny = np.maximum(1e-6 * np.abs(mean), 1e-12)  # of a constant channel
        return Forecaster(network, mean.tolist(), np.maximum(std, tiny).tolist(), np.maximum(change, tiny).tolist())

    def train_windows(self) -> tuple[list[int], int]:
        """Return the first times of the training windows, and their length. None spans a gap in time."""
        length = self.num_in + self.num_out + self.augmentation.shift_steps
        return self.fields.starts(length, stop=self.times()[0]), length

    def valid_windows(self) -> tuple[list[int], int]:
        """Return the same of the held-out windows."""
        (first, stop), length = self.times(), self.num_in + self.num_out
        return self.fields.starts(length, first=first, stop=stop), length

    def train_data(self) -> Dataset[Any]:
        """Return the windows of the training times."""
        return Windows(self.values, *self.train_windows())

    def valid_data(self) -> Dataset[Any]:
        """Return the windows of the held-out times."""
        return Windows(self.values, *self.valid_windows())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the fused optimizer, which updates all weights in one call."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01, fused=True)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler:
        """Increase the learning rate linearly, then decay it along a half cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=self.warmup_frac)

    def random_transform(self, sample: torch.Tensor) -> torch.Tensor:
        """Augment a window: all of its times share what is drawn."""
        if self.augmentation == Augmentation():
            return sample
        from hasten.recipes.datacube.augment_kernel import augment  # noqa: PLC0415  compiles with numba, only if needed

        return augment(self.augmenter, [sample.float()], torch.randint(2**62, (1,)))[0]

    @cached_property
    def statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each channel over the training times, [channel]."""
        values = self.values[: self.times()[0]].numpy()
        return np.nanmean(values, axis=(0, 2, 3)), np.nanstd(values, axis=(0, 2, 3))

    @cached_property
    def augmenter(self) -> Augmenter:
        """What augments the training samples."""
        mean, std = (values.tolist() for values in self.statistics)
        return Augmenter(self.augmentation, self.fields.channels, self.fields.grid, mean=mean, std=std)

    @cached_property
    def physics(self) -> Constraints:
        """The constraints, with fixed weights."""
        return Constraints(self.fields.channels, self.fields.grid, weights=self.constraints)

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Compute the area-weighted squared error, in units of the typical change, with the constraints."""
        forecast, target = model(batch[:, : self.num_in]), batch[:, self.num_in :]
        scale: Any = model.change
        known = target.isfinite()
        weight = self.area(batch.device) * known
        off = ((forecast - target.where(known, 0.0)) / scale).square()
        loss: torch.Tensor = (off * weight).sum() / weight.sum()
        if self.constraints:
            loss = loss + self.physics.to(batch.device)(forecast, batch[:, self.num_in - 1])[0]
        return loss

    def area(self, device: torch.device) -> torch.Tensor:
        """Return the relative area of the cells of each latitude, `[latitude, 1]`."""
        return torch.from_numpy(np.cos(np.deg2rad(self.fields.grid.latitude))).float().to(device)[:, None]

    def metric(self, model: nn.Module, batch: torch.Tensor) -> Mapping[str, Gathered]:
        """Gather the squared errors of the forecast and of persistence by channel; `whole_metric` gets their roots."""
        last, target = batch[:, self.num_in - 1 : self.num_in], batch[:, self.num_in :]
        known = target.isfinite() & last.isfinite()
        weight = self.area(batch.device) * known
        both = model(batch[:, : self.num_in]), last.expand_as(target)
        squares = [(forecast - target).where(known, 0.0).square() * weight for forecast in both]
        sums = torch.stack([one.sum(dim=(0, 1, 3, 4)) for one in (weight, *squares)])
        return {_SQUARES: Gathered([sums.detach().double().cpu().numpy()])}

    def whole_metric(self, name: str, items: list[Any]) -> Mapping[str, float]:
        """Return the RMSE of each variable, and `error`: the mean over channels of RMSE relative to persistence."""
        if name != _SQUARES:
            return super().whole_metric(name, items)
        weight, forecast, persistence = np.sum(items, axis=0)
        result = {"error": float(np.mean(np.sqrt(forecast / np.maximum(persistence, 1e-30))))}
        names = [channel.variable for channel in self.fields.channels]
        for variable in dict.fromkeys(names):
            rows = [number for number, other in enumerate(names) if other == variable]
            result[f"rmse_{variable}"] = float(np.sqrt(forecast[rows].sum() / weight[rows].sum()))
        return result
