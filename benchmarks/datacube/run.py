"""`python -m benchmarks datacube`: the datacube recipe, part by part. Existing parts are kept without `--again`.

read      reading of files of each kind against xarray and against their bytes
regrid    1.9 GB of five variables to 64 x 64, against xarray, dask, other readers and the page cache
physics   batches, augmentation and constraints against the usual way
job       tune the naive forecasting job on a generated atmosphere
"""

from __future__ import annotations

from benchmarks import in_parts

PARTS = ("read", "regrid", "physics", "job")


def main(arguments: list[str]) -> None:
    """Run the command."""
    in_parts.main("datacube", PARTS, __doc__, arguments)
