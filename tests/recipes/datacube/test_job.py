"""The forecasting job in the real training loop: both forms learn the same, and beat persistence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray

from hasten.core.errors import DataError, JobError
from hasten.core.job import check_job
from hasten.recipes.datacube import DatacubeJob, NaiveDatacubeJob
from hasten.recipes.datacube.augment import Augmentation
from hasten.recipes.datacube.synth import DrawnCube, write_cube
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a small atmosphere."""
    path = tmp_path_factory.mktemp("cube") / "cube.nc"
    write_cube(path, DrawnCube(num_times=60, num_levels=1, num_latitudes=19, num_longitudes=36))
    return path


def job_of(kind: type[DatacubeJob], *files: Path, **settings: Any) -> Any:
    """Return a small job that forecasts the files."""
    small = {"grid": (16, 32), "width": 32, "depth": 1, "batch_size": 4, "epochs": 40, "rate": 3e-3, "method": "bilinear"}
    made = type("Mine", (kind,), {"files": [str(file) for file in files], **small, **settings})()
    check_job(made)
    return made


@pytest.mark.parametrize("attention", ["factorised", "joint"])
def test_both_forms_train_the_same_mathematics(file: Path, attention: str) -> None:
    losses, held = {}, {}
    for kind in (NaiveDatacubeJob, DatacubeJob):
        loop = Loop(build(job_of(kind, file, attention=attention), device=CPU))
        loop.run(5)
        loop.close()
        losses[kind], held[kind] = loop.losses, HeldOut(loop.live).measure()
    assert losses[DatacubeJob] == pytest.approx(losses[NaiveDatacubeJob], rel=1e-3)
    assert losses[DatacubeJob][0] == pytest.approx(losses[NaiveDatacubeJob][0], rel=1e-5)
    assert held[DatacubeJob] == pytest.approx(held[NaiveDatacubeJob], rel=1e-3)


@pytest.mark.parametrize("network", ["transformer", "unet"])
def test_a_trained_network_beats_persistence_which_is_where_it_starts(file: Path, network: str) -> None:
    live = build(job_of(DatacubeJob, file, network=network), device=CPU)
    loop = Loop(live)
    assert HeldOut(live).measure()["error"] == pytest.approx(1.0)
    loop.run(60)
    loop.close()
    seen = HeldOut(live).measure()
    assert seen["error"] < 0.8
    assert {"rmse_temperature", "rmse_pressure", "rmse_humidity", "rmse_u", "rmse_v"} < set(seen)


def test_the_error_weighs_by_area(file: Path) -> None:
    job = job_of(DatacubeJob, file, variables=["temperature"])
    model, batch = job.model(), torch.stack([job.valid_data()[at] for at in range(3)])
    seen = job.whole_metric("squares", job.metric(model, batch)["squares"].items)
    off = (batch[:, 4] - batch[:, 3])[:, 0].double().numpy()
    weight = np.broadcast_to(np.cos(np.deg2rad(job.fields.grid.latitude))[:, None], off.shape)
    assert seen["rmse_temperature"] == pytest.approx(np.sqrt((off**2 * weight).sum() / weight.sum()), rel=1e-5)


def test_missing_values_and_constraints_in_the_loss(file: Path) -> None:
    job = job_of(DatacubeJob, file, variables=["humidity"], constraints={"humidity": 0.1})
    model, batch = job.model(), job.train_data()[0][None].clone()
    plain = job.loss(model, batch)
    batch[0, 1, 0, :4, :4] = torch.nan
    batch[0, 4, 0, 2, 2] = torch.nan
    loss = job.loss(model, batch)
    loss.backward()
    assert loss.isfinite()
    assert loss != plain
    assert all(weights.grad.isfinite().all() for weights in model.parameters() if weights.grad is not None)
    torch.nn.init.constant_(model.network.head.bias, -100.0)
    free = job_of(DatacubeJob, file, variables=["humidity"])
    assert job.loss(model, batch) > free.loss(model, batch)


def test_all_times_of_a_sample_share_its_augmentation(file: Path) -> None:
    job = job_of(DatacubeJob, file, augmentation=Augmentation(rotate_degrees=180.0))
    sample = torch.arange(32.0).expand(5, len(job.fields.channels), 16, 32).contiguous()
    sample[:, [channel.variable == "humidity" for channel in job.fields.channels]] = 0.01
    torch.manual_seed(1)
    turned = job.random_transform(sample)
    assert not torch.equal(turned, sample)
    assert torch.equal(turned, turned[:1].expand_as(turned))
    torch.manual_seed(1)
    assert torch.equal(job.random_transform(sample), turned)
    plain = job_of(DatacubeJob, file)
    assert plain.random_transform(sample) is sample


def test_windows_that_shift_have_the_times_to_shift_into(file: Path) -> None:
    job = job_of(DatacubeJob, file, augmentation=Augmentation(shift_steps=3))
    sample = job.train_data()[0]
    assert len(sample) == 8
    assert len(job.random_transform(sample)) == len(job.valid_data()[0]) == 5
    assert job.loss(job.model(), job.random_transform(sample)[None]).isfinite()


def test_a_part_of_the_globe(file: Path, tmp_path: Path) -> None:
    part = xarray.open_dataset(file, decode_times=False).isel(longitude=slice(3, 20))
    part.to_netcdf(tmp_path / "part.nc", engine="netcdf4")
    regional = job_of(DatacubeJob, tmp_path / "part.nc", grid=(16, 16))
    assert regional.fields.grid.longitude[0] == pytest.approx(25 + 170 / 32)
    turning = job_of(DatacubeJob, tmp_path / "part.nc", grid=(16, 16), augmentation=Augmentation(rotate_degrees=180.0))
    with pytest.raises(JobError, match="rotate_degrees needs"):
        turning.random_transform(regional.train_data()[0])


def test_settings_that_do_not_fit_are_told(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few for windows of 51"):
        job_of(DatacubeJob, file, num_in=50).train_data()
    with pytest.raises(JobError, match="'transformer' or 'unet', not 'mlp'"):
        job_of(DatacubeJob, file, network="mlp").model()
    with pytest.raises(JobError, match="must be a list of files"):
        type("Mine", (DatacubeJob,), {"files": "cube.nc"})().train_data()
    write_cube(tmp_path / "bad.nc", DrawnCube(num_times=20, num_levels=1, num_latitudes=19, num_longitudes=36))
    with h5py.File(tmp_path / "bad.nc", "a") as opened:
        opened["v"][...] = np.nan
    with pytest.raises(DataError, match="v has only missing values"):
        job_of(DatacubeJob, tmp_path / "bad.nc").train_data()
