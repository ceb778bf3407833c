"""Channels that stand for the pixels of a square, laid out as these pixels, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable

from hasten.recipes.needed import needed
from hasten.recipes.ocr.threads import kernel_threads

_KERNELS = f"{__package__}.kernels_layout"


def laid_out(x: torch.Tensor, side: int) -> torch.Tensor:
    """What `F.pixel_shuffle` gives, as float32.

    Args:
        x: `bfloat16 [batch, maps * side * side, height, width]`, in `channels_last`, as `normed.can_norm` says.
        side: Of the square that a pixel becomes.

    Returns:
        `float32 [batch, maps, side * height, side * width]`.

    Raises:
        MachineError: Numba is not installed.
    """
    out: torch.Tensor = _LaidOut.apply(x, side)  # type: ignore[no-untyped-call]
    return out


def moved_out(x: torch.Tensor, side: int) -> torch.Tensor:
    """The same as bfloat16, where no gradient is wanted: what `F.pixel_shuffle` gives, bit by bit.

    Args:
        x: As `laid_out` takes it, without a gradient.
        side: Of the square that a pixel becomes.

    Raises:
        MachineError: Numba is not installed.
    """
    batch, channels, height, width = x.shape
    out = torch.empty(batch, channels // side**2, side * height, side * width, dtype=torch.bfloat16)
    needed(_KERNELS).move_out(pixels_of(x), side, out.view(torch.uint16).numpy(), kernel_threads())
    return out


class _LaidOut(torch.autograd.Function):
    """One pass either way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, side: int) -> torch.Tensor:
        """Widen and lay out."""
        ctx.shape, ctx.side = x.shape, side
        batch, channels, height, width = x.shape
        out = torch.empty(batch, channels // side**2, side * height, side * width)
        needed(_KERNELS).lay_out(pixels_of(x), side, out.numpy(), kernel_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outers: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Narrow and take back."""
        inner = torch.empty(ctx.shape, dtype=torch.bfloat16, memory_format=torch.channels_last)
        outer = outers[0].contiguous()
        needed(_KERNELS).take_back(outer.numpy(), ctx.side, pixels_of(inner), kernel_threads())
        return inner, None


def warm() -> None:
    """Compile the passes, or load them from disk.

    Raises:
        MachineError: Numba is not installed.
    """
    squares = torch.ones(1, 4, 2, 2, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()
    laid_out(squares, 2).sum().backward()
    moved_out(squares.detach(), 2)


def pixels_of(x: torch.Tensor) -> npt.NDArray[np.uint16]:
    """The numbers as they lie, `[batch, height, width, channels]`."""
    pixels: npt.NDArray[np.uint16] = x.detach().permute(0, 2, 3, 1).view(torch.uint16).numpy()
    return pixels
