"""Write the tables of docs/results/datacube.md from the recorded result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]
KINDS = {
    "float32": "float32, contiguous",
    "int16": "packed int16, contiguous",
    "zlib": "float32, zlib and shuffle",
    "zarr": "Zarr, float32",
}
WAYS = ("xarray", "dask", "h5coro-hidefix", "zarr-beluga", "hasten", "page cache", "page cache, new memory")


def goals(result: Result) -> str:
    """Return each goal with what was seen."""
    lines = ["| measured | goal | seen | |", "|---|---|---|---|"]
    for name, goal in result["goals"].items():
        lines.append(f"| {name} | {_words(goal['goal'])} | {_words(goal['seen'])} | {'' if goal['reached'] else 'missed'} |")
    return "\n".join([*lines, "", f"Measured on {result['machine']}."])


def regrid(result: Result) -> str:
    """Return the seconds and the memory of each way to read and regrid."""
    part = result["parts"]["regrid"]
    lines = [f"| file | {' | '.join(WAYS)} |", f"|---{'|---' * len(WAYS)}|"]
    for kind, words in KINDS.items():
        seconds, growth = part[kind]["median_s"], part[kind]["growth_bytes"]
        cells = [f"{seconds[way]:.2f} s, {growth[way] / 2**20:,.0f} MiB" if way in seconds else "" for way in WAYS]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def headline(result: Result) -> str:
    """Return one line for the summary: the job, and the goals that were missed."""
    job = result["parts"]["job"]["evidence"]["final"]
    missed = [name for name, goal in result["goals"].items() if not goal["reached"]]
    words = f"the forecasting job **{job['ratio']:.2f}x** faster ({job['low']:.2f} to {job['high']:.2f})"
    return f"{words}; missed: {', '.join(missed) or 'nothing'}"


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("_", " ")
    return f"{value / 2**20:,.0f} MiB" if value >= 2**20 else f"{value:g}"
