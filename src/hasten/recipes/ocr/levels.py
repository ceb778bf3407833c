"""Levels of a feature pyramid added up and laid side by side, on a CPU, with bfloat16 and without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hasten.recipes.needed import needed
from hasten.recipes.ocr.layout import pixels_of
from hasten.recipes.ocr.normed import can_norm
from hasten.recipes.ocr.threads import kernel_threads

_KERNELS = f"{__package__}.kernels_pyramid"


def can_lay(levels: Sequence[torch.Tensor]) -> bool:
    """Whether the functions here take such levels: each half as high and wide as the one before.

    Raises:
        MachineError: Numba is not installed.
    """
    (batch, channels, height, width), grad = levels[0].shape, torch.is_grad_enabled()
    return not grad and all(
        can_norm(level) and level.shape == (batch, channels, height >> at, width >> at) for at, level in enumerate(levels)
    )


def add_coarse(fine: torch.Tensor, coarse: torch.Tensor) -> None:
    """Add to each pixel that of half the size at its place.

    Args:
        fine: `bfloat16 [batch, channels, height, width]`, channels last in memory; gets the sum.
        coarse: `[batch, channels, height / 2, width / 2]`, so as well.

    Raises:
        MachineError: Numba is not installed.
    """
    needed(_KERNELS).add_coarse(pixels_of(fine), pixels_of(coarse), kernel_threads())


def side_by_side(levels: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay all levels beside one another, each as large as the first.

    Args:
        levels: `bfloat16 [batch, channels, height / 2^n, width / 2^n]`, channels last in memory.

    Returns:
        `[batch, levels * channels, height, width]`, so as well.

    Raises:
        MachineError: Numba is not installed.
    """
    batch, channels, height, width = levels[0].shape
    shape = (batch, len(levels) * channels, height, width)
    out = torch.empty(shape, dtype=torch.bfloat16, memory_format=torch.channels_last)
    lying = [level.contiguous(memory_format=torch.channels_last) for level in levels]
    needed(_KERNELS).side_by_side(tuple(map(pixels_of, lying)), pixels_of(out), kernel_threads())
    return out


def warm() -> None:
    """Compile the passes, or load them from disk.

    Raises:
        MachineError: Numba is not installed.
    """
    levels = [
        torch.ones(1, 2, 8 >> at, 8 >> at, dtype=torch.bfloat16).to(memory_format=torch.channels_last) for at in range(4)
    ]
    add_coarse(levels[0], levels[1])
    side_by_side(levels)
