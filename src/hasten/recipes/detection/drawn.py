"""The banknotes that a job learns where it was given no pictures."""

from __future__ import annotations

from pathlib import Path

from hasten.recipes.drawn import drawn_once

VERSION = 1
"""Of what `synth` draws: raised with it."""


def drawn_pictures(count: int, seed: int = 0) -> Path:
    """A folder of drawn pictures, `images` and `labels` (YOLO) in it.

    Raises:
        MachineError: It cannot be written.
    """

    def draw(folder: Path) -> None:
        from hasten.recipes.detection.synth import write  # noqa: PLC0415  only who draws needs what it draws with

        write(folder, count, seed)

    return drawn_once(f"detection-{VERSION}-{seed}-{count}", draw)
