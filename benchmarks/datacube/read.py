"""Measure reading of five variables, decoded, against xarray and against reading the bytes of the file, in turns.

The fields are smooth with noise in their last bits, as reanalyses are. Files come from the page cache. Every way reads
windows of times of one variable after another, so that its memory is bounded; ours and the plain read reuse their memory.
`peak_bytes` is the growth of a fresh process that reads a whole file so, the output of one window included. It includes
what the decoders load. `decode` compares ways to decode 16-bit integers in memory, with the largest difference of each from
float64 that is rounded once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import torch
import xarray

from benchmarks.turns import in_turns, most_memory
from hasten.data.cube.cf import Packing
from hasten.data.cube.open import open_cube

ROUNDS = 3
NAMES = ("t", "q", "u", "v", "z")
SHAPE = (73, 20, 181, 360)
WINDOW = 4
SCALE, OFFSET, FILL = 0.002, 250.0, -32768
PACKED = {"scale_factor": SCALE, "add_offset": OFFSET, "_FillValue": np.int16(FILL)}
ZLIB = {"chunks": (1, *SHAPE[1:]), "shuffle": True, "compression": "gzip", "compression_opts": 1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("f4", {}),
    "int16": ("i2", {}),
    "int16 zlib": ("i2", ZLIB),
    "float32 zlib": ("f4", ZLIB),
}
GOALS = {"float32": ("over_bytes", 1.5)}
"""Time relative to reading the bytes. Regridding, in another part, has the goals relative to xarray."""
CODES = 2**25


def run(_record: Mapping[str, Any], count: int = ROUNDS) -> dict[str, Any]:
    """Measure all kinds of files.

    Args:
        count: Number of rounds.

    Returns:
        Raw seconds of each way, medians, ratios, peak memory, and whether the goal is met.
    """
    parts = {}
    for kind in KINDS:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "fields.nc"
            write(path, kind)
            parts[kind] = _kind(path, count)
        print(f"{kind}: {parts[kind]}", flush=True)
    goals = {
        kind: {"goal": goal, "seen": parts[kind][figure], "reached": parts[kind][figure] <= goal}
        for kind, (figure, goal) in GOALS.items()
    }
    return {
        "shape": SHAPE, "variables": len(NAMES), "window": WINDOW, "threads": torch.get_num_threads(), "parts": parts,
        "decode": _decode(count), "goals": goals,
    }  # fmt: skip


def write(path: Path, kind: str, shape: tuple[int, ...] = SHAPE) -> None:
    """Write the variables of one kind as NetCDF-4."""
    dtype, layout = KINDS[kind]
    rng = np.random.default_rng(0)
    axes = {
        "time": (np.arange(shape[0]), "days since 2001-01-01"),
        "level": (np.linspace(1000, 10, shape[1]), "hPa"),
        "lat": (np.linspace(90, -90, shape[2]), "degrees_north"),
        "lon": (np.arange(shape[3]) * (360 / shape[3]), "degrees_east"),
    }
    smooth = 20 * np.cos(np.radians(axes["lat"][0]))[:, None] * np.sin(np.radians(axes["lon"][0]))
    with h5py.File(path, "w") as file:
        for name, (values, units) in axes.items():
            file[name] = values.astype("f8")
            file[name].make_scale(name)
            file[name].attrs["units"] = units
        for name in NAMES:
            field = file.create_dataset(name, shape, dtype, **layout)
            for at, axis in enumerate(axes):
                field.dims[at].attach_scale(file[axis])
            field.attrs.update({"units": "K", **(PACKED if dtype == "i2" else {})})
            for time in range(shape[0]):
                noise = rng.normal(0, 0.02, shape[1:]).astype("f4")
                values = (smooth + time * 0.1 + noise).astype("f4")
                field[time] = np.rint(values / SCALE) if dtype == "i2" else np.round(values + OFFSET, 3)


def ours(path: Path, out: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    """Read all variables in windows, into one memory."""
    cube = open_cube([path])
    for name in NAMES:
        for start in range(0, SHAPE[0], WINDOW):
            stop = min(start + WINDOW, SHAPE[0])
            cube.read(name, start, stop, out[: stop - start])


def _kind(path: Path, count: int) -> dict[str, Any]:
    out = np.empty((WINDOW, *SHAPE[1:]), np.float32)
    buffer = bytearray(2**22)

    def plain() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def theirs() -> None:
        with xarray.open_dataset(path, engine="h5netcdf" if _has("h5netcdf") else "netcdf4", cache=False) as data:
            for name in NAMES:
                for start in range(0, SHAPE[0], WINDOW):
                    _ = data[name][start : start + WINDOW].values

    cube = open_cube([path])
    with xarray.open_dataset(path, cache=False) as data:
        right = data["t"][:WINDOW].values
        difference = float(np.abs(cube.read("t", 0, WINDOW) - right).max())
    seconds = in_turns({"bytes": plain, "Hasten": lambda: ours(path, out), "xarray": theirs}, count)
    pairs = list(zip(seconds["bytes"], seconds["Hasten"], seconds["xarray"], strict=True))
    return {
        "way": cube.variables["t"].way,
        "file_bytes": path.stat().st_size,
        "largest_difference": difference,
        "over_bytes": round(median(mine / raw for raw, mine, _ in pairs), 2),
        "over_xarray": round(median(other / mine for _, mine, other in pairs), 2),
        "peak_bytes": _peak(path),
        "window_bytes": out.nbytes,
        "seconds": seconds,
    }


def _decode(count: int) -> dict[str, Any]:
    """Compare the ways to decode packed integers of 16 bits."""
    codes = np.random.default_rng(0).integers(-32767, 32767, CODES).astype("i2")
    packing = Packing.read(codes.dtype, PACKED, "codes")
    out, right = np.empty(CODES, np.float32), np.empty(CODES, np.float32)
    step = 2**15

    def blocks() -> None:
        for start in range(0, CODES, step):
            packing.decode(codes[start : start + step], out[start : start + step])

    def single() -> None:
        for start in range(0, CODES, step):
            part, target = codes[start : start + step], out[start : start + step]
            np.multiply(part, np.float32(SCALE), out=target)
            np.add(target, np.float32(OFFSET), out=target)
            target[part == FILL] = np.nan

    ways: dict[str, Callable[[], None]] = {
        "lookup table": lambda: packing.decode(codes, out),
        "float64 in blocks": blocks,
        "float32 in blocks": single,
        "conversion without scaling": lambda: np.copyto(out, codes),
    }
    blocks()
    right[:] = out
    differences = {}
    for name, way in list(ways.items())[:3]:
        way()
        differences[name] = float(np.abs(out - right).max())
    return {"values": CODES, "largest_difference": differences, "seconds": in_turns(ways, count)}


def _has(package: str) -> bool:
    from importlib.util import find_spec  # noqa: PLC0415  only here

    return find_spec(package) is not None


def _peak(path: Path) -> int:
    command = [sys.executable, "-m", "benchmarks.datacube.read", str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_peak(path: Path) -> None:
    before = most_memory()
    ours(path, np.empty((WINDOW, *SHAPE[1:]), np.float32))
    print(most_memory() - before)


if __name__ == "__main__":
    _print_peak(Path(sys.argv[1]))
