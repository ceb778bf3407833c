"""Forecasts of gridded data in space and time: train on NetCDF files.

`DatacubeJob` is the job to train. `NaiveDatacubeJob` is the same job written in the usual way; it is the baseline. Set your
files in a subclass::

    from hasten.recipes.datacube import DatacubeJob


    class Weather(DatacubeJob):
        files = ("january.nc", "february.nc")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.recipes.datacube.job import DatacubeJob
    from hasten.recipes.datacube.naive import NaiveDatacubeJob

__all__ = ["DatacubeJob", "NaiveDatacubeJob"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from hasten.recipes.datacube import job, naive  # noqa: PLC0415  torch is imported on first use of a job

        return naive.NaiveDatacubeJob if name == "NaiveDatacubeJob" else job.DatacubeJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
