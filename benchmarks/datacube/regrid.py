"""Measure reading and regridding five variables to 64 x 64 cells, against xarray, dask and other readers, in turns.

float32   contiguous, 1.9 GB       int16   packed, contiguous       zlib    shuffled, one chunk for each time
zarr      version 2, one chunk for each time and variable, as xarray compresses it

They hold waves with noise of two digits, and are in the page cache. `page cache` reads the bytes into one
reused buffer, which is the least that any reader needs; `page cache, new memory` reads each variable into memory of its own.
Way by way, each measurement runs in a process of its own, which reports the growth of its peak memory while it works.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.turns import most_memory
from hasten.data.cube.fields import Fields
from hasten.data.cube.open import open_cube
from hasten.data.cube.regrid import Grid, regridder

NAMES = ("t", "u", "v", "q", "z")
SHAPE = (73, 20, 181, 360)
SIDE = 64
ROUNDS = 3
KINDS = ("float32", "int16", "zlib", "zarr")
GOALS = {"float32": 10.0, "int16": 20.0, "zlib": 5.0}
"""Smallest accepted ratio to xarray, where there is one."""
OVER_PAGE_CACHE = 1.5
BUDGET_BYTES = 2**28
"""Largest accepted growth of memory beside the result."""


def write(path: Path, kind: str) -> None:
    """Write the file of a kind."""
    import netCDF4  # noqa: PLC0415  of the extra `dev`

    rng = np.random.default_rng(0)
    latitude, longitude = np.linspace(90, -90, SHAPE[2]), np.arange(float(SHAPE[3]))
    waves = 250 + 20 * np.sin(np.deg2rad(latitude))[:, None] * np.cos(np.deg2rad(longitude))
    axes = {
        "time": (np.arange(SHAPE[0]), "hours since 2001-01-01"), "level": (np.linspace(1000, 10, SHAPE[1]), "hPa"),
        "latitude": (latitude, "degrees_north"), "longitude": (longitude, "degrees_east"),
    }  # fmt: skip
    if kind == "zarr":
        import xarray as xr  # noqa: PLC0415  of the extra `datacube`

        for name in NAMES:
            values = np.stack([waves + rng.normal(size=SHAPE[1:]) for _ in range(SHAPE[0])]).round(2).astype("f4")
            one = xr.Dataset(
                {name: (tuple(axes), values)}, {axis: (axis, at, {"units": unit}) for axis, (at, unit) in axes.items()}
            )
            one.to_zarr(path, mode="a", zarr_format=2, encoding={name: {"chunks": (1, *SHAPE[1:])}}, consolidated=False)
        return
    layout: dict[str, Any] = {"contiguous": True}
    if kind == "zlib":
        layout = {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (1, *SHAPE[1:])}
    with netCDF4.Dataset(path, "w") as file:
        for name, (values, units) in axes.items():
            file.createDimension(name, len(values))
            file.createVariable(name, "f8", (name,))[:] = values
            file[name].units = units
        for name in NAMES:
            packed = kind == "int16"
            one = file.createVariable(
                name, "i2" if packed else "f4", tuple(axes), fill_value=-32768 if packed else None, **layout
            )
            if packed:
                one.scale_factor, one.add_offset = 0.01, 250.0
            for number in range(SHAPE[0]):
                one[number] = (waves + rng.normal(size=SHAPE[1:])).round(2)


def hasten(path: Path, out: torch.Tensor) -> None:
    """Read and regrid with Hasten, into the result."""
    fields = Fields(open_cube([path]), variables=NAMES, grid=(SIDE, SIDE))
    fields.read(0, len(fields), out)


def xarray(path: Path, out: torch.Tensor, **options: Any) -> None:
    """Interpolate with xarray."""
    import xarray as xr  # noqa: PLC0415  of the extra `datacube`

    grid = _target()
    with xr.open_dataset(path, **options) as data:
        done = data.interp(latitude=list(grid.latitude), longitude=list(grid.longitude)).load()
        for number, name in enumerate(NAMES):
            out[:, number * SHAPE[1] : (number + 1) * SHAPE[1]] = torch.from_numpy(done[name].values)


def dask(path: Path, out: torch.Tensor) -> None:
    """Interpolate with xarray on dask's threads, a chunk for each time."""
    import dask as package  # noqa: PLC0415  if it is installed

    with package.config.set(scheduler="threads", num_workers=os.cpu_count()):
        xarray(path, out, chunks={"time": 1})


def hidefix(path: Path, out: torch.Tensor) -> None:
    """Read with h5coro-hidefix; decode and regrid as Hasten does. It does not know the packing of NetCDF."""
    import h5coro_hidefix  # noqa: PLC0415  if it is installed

    index = h5coro_hidefix.Index(str(path))
    latitude, longitude = np.linspace(90, -90, SHAPE[2]), np.arange(float(SHAPE[3]))
    to = regridder(Grid(tuple(latitude.tolist()), tuple(longitude.tolist())), _target())
    for number, name in enumerate(NAMES):
        for first in range(0, SHAPE[0], 12):
            values = torch.from_numpy(index.read(f"/{name}", first, min(first + 12, SHAPE[0])))
            if values.dtype == torch.int16:
                values = values.float().mul_(0.01).add_(250.0)
            out[first : first + 12, number * SHAPE[1] : (number + 1) * SHAPE[1]] = to(values)


def zarr_beluga(path: Path, out: torch.Tensor) -> None:
    """Read with zarr-beluga, which decodes several times ahead; regrid as Hasten does."""
    import beluga  # noqa: PLC0415  if it is installed

    latitude, longitude = np.linspace(90, -90, SHAPE[2]), np.arange(float(SHAPE[3]))
    to = regridder(Grid(tuple(latitude.tolist()), tuple(longitude.tolist())), _target())
    reader = beluga.open_zarr_group(str(path.parent), path.name, variables=list(NAMES))
    for number, sample in enumerate(reader.stream(range(SHAPE[0]), frames=1)):
        out[number] = to(torch.utils.dlpack.from_dlpack(sample)[0])


def page_cache(path: Path, _: torch.Tensor) -> None:
    """Read the bytes of the files into one buffer."""
    buffer = bytearray(2**24)
    for part in _files(path):
        with part.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def new_memory(path: Path, _: torch.Tensor) -> None:
    """Read the bytes of the files into new memory, a fifth of a large one at a time."""
    for part in _files(path):
        with part.open("rb", buffering=0) as file:
            while file.read(part.stat().st_size // len(NAMES) + 1):
                pass


WAYS: dict[str, Callable[[Path, torch.Tensor], None]] = {
    "hasten": hasten, "xarray": xarray, "dask": dask, "h5coro-hidefix": hidefix,
    "zarr-beluga": zarr_beluga, "page cache": page_cache, "page cache, new memory": new_memory,
}  # fmt: skip


def run(_found: Mapping[str, Any], count: int = ROUNDS) -> dict[str, Any]:
    """Measure all kinds of files.

    Args:
        count: Number of rounds.

    Returns:
        For each kind the raw seconds and memory of each way, ratios to Hasten, and which goals are met.
    """
    results: dict[str, Any] = {"shape": SHAPE, "variables": NAMES, "rivals": _rivals(), "goals": {}}
    with tempfile.TemporaryDirectory(prefix="datacube-") as folder:
        for kind in KINDS:
            path = Path(folder) / ("fields.zarr" if kind == "zarr" else f"{kind}.nc")
            write(path, kind)
            results[kind] = _measured(path, count)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            if kind not in GOALS:
                continue
            seen = results[kind]["ratios"]["xarray"]
            results["goals"][f"{kind} over xarray"] = {"goal": GOALS[kind], "seen": seen, "reached": seen >= GOALS[kind]}
    seen = results["float32"]["over_page_cache"]
    results["goals"]["time over the page cache"] = {
        "goal": OVER_PAGE_CACHE, "seen": seen, "reached": seen <= OVER_PAGE_CACHE
    }  # fmt: skip
    seen = max(results[kind]["growth_bytes"]["hasten"] for kind in KINDS)
    results["goals"]["memory beside the result, in bytes"] = {
        "goal": BUDGET_BYTES, "seen": seen, "reached": seen <= BUDGET_BYTES
    }  # fmt: skip
    return results


def _measured(path: Path, count: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}
    growth: dict[str, list[int]] = {}
    refused: dict[str, str] = {}
    for _ in range(count):
        for name in random.sample(list(WAYS), len(WAYS)):
            if name in refused:
                continue
            command = [sys.executable, "-m", "benchmarks.datacube.regrid", name, str(path)]
            made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            if made.returncode:
                refused[name] = made.stderr.strip().splitlines()[-1][:200]
                continue
            one = json.loads(made.stdout)
            seconds.setdefault(name, []).append(one["seconds"])
            growth.setdefault(name, []).append(one["growth_bytes"])
    ratios = {
        name: round(median(a / b for a, b in zip(values, seconds["hasten"], strict=True)), 2)
        for name, values in seconds.items()
        if name != "hasten"
    }
    return {
        "file_bytes": sum(part.stat().st_size for part in _files(path)),
        "median_s": {name: round(median(values), 3) for name, values in seconds.items()},
        "ratios": ratios,
        "over_page_cache": round(1 / ratios["page cache"], 2),
        "over_page_cache_new_memory": round(1 / ratios["page cache, new memory"], 2),
        "growth_bytes": {name: max(values) for name, values in growth.items()},
        "not_measured": refused,
        "seconds": seconds,
    }


def _rivals() -> dict[str, str]:
    found = {}
    for name in ("xarray", "dask", "h5coro-hidefix", "zarr-beluga", "insitubatch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _files(path: Path) -> list[Path]:
    return [part for part in path.rglob("*") if part.is_file()] if path.is_dir() else [path]


def _target() -> Grid:
    return Grid.regular(SIDE, SIDE)


def main() -> None:
    """Measure one way on one file, and print its seconds and the growth of the peak memory beside the result."""
    name, path = sys.argv[1], Path(sys.argv[2])
    out = torch.zeros(SHAPE[0], len(NAMES) * SHAPE[1], SIDE, SIDE)
    page_cache(path, out)
    regridder(Grid.regular(8, 8), Grid.regular(4, 4))(torch.zeros(8, 8))  # start the threads of PyTorch
    if name == "hasten":  # compile or load the table lookup
        open_cube([path]).read(NAMES[0], 0, 1)
    before = most_memory()
    began = time.perf_counter()
    WAYS[name](path, out)
    seconds = time.perf_counter() - began
    growth = most_memory() - before
    sys.stdout.write(json.dumps({"seconds": seconds, "growth_bytes": growth}))


if __name__ == "__main__":
    main()
