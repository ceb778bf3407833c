"""Draw the pictures of the guide: `python -m benchmarks.datacube.pictures` writes docs/assets/datacube.jpg.

Fields of a generated atmosphere: as in the file, on the grid of the job, and after augmentation.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure

from benchmarks.record import ROOT
from hasten.data.cube.fields import Fields
from hasten.data.cube.open import open_cube
from hasten.recipes.datacube.augment import Augmentation, Augmenter, key
from hasten.recipes.datacube.synth import DrawnCube, write_cube

CUBE = DrawnCube(num_times=2, num_levels=1, num_latitudes=181, num_longitudes=360, seed=3)
GRID = (32, 64)
CHANGES = Augmentation(temperature_noise=2.0, flip_frac=1.0, rotate_degrees=180.0)
ROWS = {"temperature": ("air temperature, K", "RdYlBu_r"), "v": ("northward wind, m/s", "PuOr")}


def main() -> None:
    """Draw and write the pictures."""
    with TemporaryDirectory() as folder:
        write_cube(Path(folder) / "cube.nc", CUBE)
        cube = open_cube([Path(folder) / "cube.nc"], variables=list(ROWS))
        whole, fields = Fields(cube), Fields(cube, grid=GRID)
        before, after = whole.read(0, 1), fields.read(0, 1)
    changed = Augmenter(CHANGES, fields.channels, fields.grid)(after[None], [key(0, 0, 1)])[0]
    titles = {
        f"in the file, {CUBE.num_latitudes} x {CUBE.num_longitudes}": before,
        f"on the grid, {GRID[0]} x {GRID[1]}": after,
        "rotated, mirrored, with noise": changed,
    }
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(len(ROWS), len(titles))
    for row, (words, colours) in enumerate(ROWS.values()):
        low, high = (float(before[0, row].quantile(at)) for at in torch.tensor([0.001, 0.999]))
        for place, (title, values) in enumerate(titles.items()):
            axis = axes[row, place]
            image = axis.imshow(
                values[0, row], cmap=colours, vmin=low, vmax=high, extent=(0, 360, -90, 90), interpolation="nearest"
            )
            axis.set(xticks=[0, 180, 360], yticks=[-90, 0, 90], title="" if row else title)
        figure.colorbar(image, ax=axes[row, :], label=words)
    figure.savefig(ROOT / "docs" / "assets" / "datacube.jpg", dpi=100, pil_kwargs={"quality": 85})


if __name__ == "__main__":
    main()
