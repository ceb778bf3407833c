"""Read the values of tensors of any layout: dense, sparse, nested, quantized, complex, and subclasses that wrap tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hasten.core.sync import whole

_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one value for each element of its shape, in strided memory."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that hold the content of a tensor: itself if it is dense."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.is_quantized:
        return [tensor.int_repr(), tensor.dequantize()]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in _BY_ROW:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in _BY_COLUMN:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.layout is not torch.strided:
        return [tensor.to_dense()]
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        names, _ = wrapper.__tensor_flatten__()
        return [part for name in names for part in dense_parts(getattr(wrapper, name))]
    return [tensor.resolve_conj().resolve_neg()]


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor; of a nested one the shapes of its parts, one after the other."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    return tuple(size for part in tensor.unbind() for size in part.shape)


def num_bytes(tensor: torch.Tensor) -> int:
    """Return the size of a tensor's content in bytes."""
    parts = [tensor] if is_dense(tensor) else dense_parts(tensor)
    return sum(part.numel() * part.element_size() for part in parts)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the content of a tensor as bytes, to compare or to hash."""
    parts = (part.as_subclass(torch.Tensor).cpu().contiguous() for part in dense_parts(tensor))
    return b"".join(part.reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts)


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return all values of a tensor in one row of float32 in host memory. A complex value gives two numbers.

    If the tensor is sharded, all ranks must call this together.
    """
    tensor = whole(tensor.detach())
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        return torch.cat([numbers(part) for part in tensor.unbind()])
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.float().cpu().contiguous().reshape(-1)
