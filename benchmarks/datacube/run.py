"""`python -m benchmarks datacube`: the datacube recipe, part by part. Existing parts are kept without `--again`.

read      reading of files of each kind against xarray and against their bytes
regrid    1.9 GB of five variables to 64 x 64, against xarray, dask, h5coro-hidefix and the page cache
physics   batches, augmentation and constraints against the usual way
job       tune the naive forecasting job on a generated atmosphere
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import record_parts

PARTS = ("read", "regrid", "physics", "job")
"""Modules of this folder with `run(record)`, which gets the parts measured so far."""


def run(parts: Sequence[str], *, again: bool = False) -> Path:
    """Measure the requested parts that are missing, or all of them again."""
    return record_parts(
        "datacube",
        parts,
        lambda part, found: import_module(f"benchmarks.datacube.{part}").run(found),
        lambda found: {"goals": goals(found)},
        again=again,
    )


def goals(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goals of all measured parts, with what was seen: `PART NAME` to goal, seen and reached."""
    return {f"{part} {name}": goal for part, result in found.items() for name, goal in result["goals"].items()}


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks datacube", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--again", action="store_true", help="repeat existing parts")
    given = parser.parse_args(arguments)
    print(f"wrote {run(given.part, again=given.again)}", flush=True)
