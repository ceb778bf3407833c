"""BatchNorm, what is added beside it, and ReLU as one operation over bfloat16 pixels of a CPU, in training.

As operations of PyTorch each is a pass of its own over the pixels, forward and backward. Here they are two passes forward
and two backward, by compiled kernels. The same mathematics: sums are taken in float32, then in float64, and the result is
rounded to bfloat16 once in place of two or three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hasten.recipes.needed import needed
from hasten.recipes.ocr.threads import kernel_threads, shares_threads

Doubles = npt.NDArray[np.float64]

_KERNELS = f"{__package__}.kernels_norm"
_LANES = 1024
"""Numbers of a row, about."""


def can_norm(x: torch.Tensor) -> bool:
    """Whether `norm_relu` takes such an input, and the kernels have threads that are not in the way of PyTorch's.

    Raises:
        MachineError: Numba is not installed.
    """
    return (
        x.dtype is torch.bfloat16
        and x.device.type == "cpu"
        and x.numel() > x.shape[1]
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
        and shares_threads()
    )


def norm_relu(norms: Sequence[nn.BatchNorm2d], x: torch.Tensor, beside: torch.Tensor | None = None) -> torch.Tensor:
    """The positive part of a norm in training plus what is beside it; running statistics move as those of the norms do.

    Args:
        norms: One, or several over their channels side by side; with running statistics, scale and bias.
        x: `bfloat16 [batch, channels, height, width]`, in `channels_last`, as `can_norm` says.
        beside: Of the same shape and type.

    Raises:
        MachineError: Numba is not installed.
    """
    weight, bias = (_joined([getattr(norm, name) for norm in norms]) for name in ("weight", "bias"))
    if beside is not None:
        beside = beside.contiguous(memory_format=torch.channels_last)
    out: torch.Tensor = _NormRelu.apply(x, weight, bias, beside, norms)  # type: ignore[no-untyped-call]
    return out


class _NormRelu(torch.autograd.Function):
    """Two passes forward, and two (with something beside, three) backward."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd calls by position
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        beside: torch.Tensor | None,
        norms: Sequence[nn.BatchNorm2d],
    ) -> torch.Tensor:
        """Statistics, then the result."""
        kernels, rows = needed(_KERNELS), _rows(x)
        parts = kernel_threads()
        count = x.numel() // x.shape[1]
        shift = _joined([_buffer(norm, "running_mean") for norm in norms]).double().numpy()
        first, second = kernels.sums(rows, shift, parts) / count
        variance = np.maximum(second - first * first, 0.0)
        mean, inverse = shift + first, 1.0 / np.sqrt(variance + norms[0].eps)
        _move(norms, mean, variance * (count / (count - 1)))
        scale = weight.double().numpy() * inverse
        level = bias.double().numpy() - mean * scale
        out = torch.empty_like(x)
        if beside is None:
            kernels.apply(rows, scale, level, _rows(out), parts)
        else:
            kernels.apply_beside(rows, _rows(beside), scale, level, _rows(out), parts)
        ctx.save_for_backward(x, out)
        ctx.statistics, ctx.has_beside = (mean, inverse, scale), beside is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outers: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Sums over the gradient, then the gradient of the input."""
        x, out = ctx.saved_tensors
        mean, inverse, scale = ctx.statistics
        kernels, rows, positive = needed(_KERNELS), _rows(x), _rows(out)
        parts = kernel_threads()
        count = x.numel() // x.shape[1]
        outer = outers[0].contiguous(memory_format=torch.channels_last)
        if ctx.has_beside:
            masked = torch.empty_like(outer)
            kernels.mask(_rows(outer), positive, _rows(masked), parts)
            outer = masked
        shift = mean.astype(np.float32).astype(np.float64)
        total, moved = kernels.gradient_sums(rows, _rows(outer), positive, shift, parts)
        moved = (moved - (mean - shift) * total) * inverse
        slope = -scale * inverse * moved / count
        level = -scale * total / count - slope * mean
        inner = torch.empty_like(x)
        kernels.back(rows, _rows(outer), positive, np.stack((scale, slope, level)), _rows(inner), parts)
        return inner, _float(moved), _float(total), outer if ctx.has_beside else None, None


def warm() -> None:
    """Compile the passes, or load them from disk.

    Raises:
        MachineError: Numba is not installed.
    """
    x = torch.ones(1, 2, 2, 2, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()
    for beside in (None, x.detach()):
        norm_relu([nn.BatchNorm2d(2)], x, beside).sum().backward()


def _rows(x: torch.Tensor) -> npt.NDArray[np.uint16]:
    """The numbers as they lie, `[rows, lanes]`, a row being whole pixels."""
    channels = x.shape[1]
    pixels = x.numel() // channels
    repeats = max(_LANES // channels, 1)
    while pixels % repeats:
        repeats -= 1
    flat = x.detach().permute(0, 2, 3, 1).view(pixels // repeats, repeats * channels)
    rows: npt.NDArray[np.uint16] = flat.view(torch.uint16).numpy()
    return rows


def _float(values: Doubles) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _joined(values: list[torch.Tensor]) -> torch.Tensor:
    return values[0] if len(values) == 1 else torch.cat(values)


def _move(norms: Sequence[nn.BatchNorm2d], mean: Doubles, variance: Doubles) -> None:
    """Move the running statistics."""
    at = 0
    for norm in norms:
        upto = at + norm.num_features
        for name, now in (("running_mean", mean), ("running_var", variance)):
            buffer = _buffer(norm, name)
            buffer.lerp_(_float(now[at:upto]).to(buffer.dtype), norm.momentum or 0.0)
        _buffer(norm, "num_batches_tracked").add_(1)
        at = upto


def _buffer(norm: nn.BatchNorm2d, name: str) -> torch.Tensor:
    found = getattr(norm, name)
    if not isinstance(found, torch.Tensor):
        raise AssertionError("a BatchNorm of this network keeps running statistics")  # noqa: TRY004
    return found
