"""A small forecasting job for `hasten demo datacube`: takes minutes, on a generated atmosphere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hasten.recipes.datacube.job import DatacubeJob
from hasten.recipes.datacube.naive import NaiveDatacubeJob
from hasten.recipes.datacube.synth import DrawnCube


class DrawnWeather(DatacubeJob):
    """Forecasts of a small atmosphere by a small network."""

    drawn = DrawnCube(num_times=160, num_levels=2)
    method = "bilinear"  # as in the naive form, so that both forecast the same fields
    constraints: ClassVar[Mapping[str, float]] = {"humidity": 0.1, "mass": 0.01}
    width = 64
    depth = 2
    batch_size = 4
    epochs = 8


class NaiveDrawnWeather(NaiveDatacubeJob, DrawnWeather):
    """The same job, written naively."""

    forms = (DrawnWeather,)
