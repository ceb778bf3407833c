"""Keep samples as rows of large tensors, so that a batch is gathered by one call per tensor.

PyTorch's default collate function stacks samples of one structure. If row `i` of a large tensor is what sample `i`
contributes to a batch, then selecting rows gives the same batch, bit for bit, without a Python call per sample. Samples that
have another structure, that contain strings, or whose stacked tensors would not be contiguous are not stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

Form = tuple[Any, ...]
"""Structure of a sample: types, keys, dtypes and shapes. Two samples of one form are stacked in the same way."""


class UnstackableError(Exception):
    """A sample cannot be a row of tensors."""


class StackedSamples:
    """Samples of one form, as rows.

    Args:
        num_samples: Number of samples in the dataset. Memory is used only for rows that are stored.
    """

    def __init__(self, num_samples: int) -> None:
        self._present = bytearray(num_samples)
        self._form: Form | None = None
        self._columns: list[torch.Tensor] = []
        self._open, self._count = True, 0

    def put(self, index: int, sample: Any) -> bool:
        """Store a sample. Returns whether it is stored; after the first sample that cannot be, no more are."""
        if not self._open:
            return False
        try:
            leaves: list[Any] = []
            form = _form(sample, leaves)
            if self._form is None:
                self._form, self._columns = form, _columns(sample, len(self._present))
            self._open = form == self._form
            for column, leaf in zip(self._columns, leaves, strict=True) if self._open else ():
                column[index] = _tensor(leaf)
        except (UnstackableError, RuntimeError, TypeError, ValueError, OverflowError):
            self._open = False
        if not self._open:
            return False
        self._count += not self._present[index]
        self._present[index] = 1
        return True

    def has(self, index: int) -> bool:
        """Return whether a sample is stored."""
        return bool(self._present[index])

    def get(self, index: int) -> Any:
        """Return a new copy of a stored sample."""
        return _built(self._form or (), iter([column[index].clone() for column in self._columns]), _leaf, tuple)

    def batch(self, indices: Sequence[int]) -> Any | None:
        """Return what the default collate function makes of these samples; None if one is not stored."""
        if not indices or not all(map(self._present.__getitem__, indices)):
            return None
        rows = torch.tensor(indices)
        return _built(
            self._form or (), iter([column.index_select(0, rows) for column in self._columns]), lambda _, part: part, list
        )

    def __len__(self) -> int:
        return self._count


def is_stackable(samples: Sequence[Any]) -> bool:
    """Return whether these samples have one form, and can be stored as rows."""
    stacked = StackedSamples(len(samples))
    return bool(samples) and all(stacked.put(index, sample) for index, sample in enumerate(samples))


def _form(sample: Any, leaves: list[Any]) -> Form:
    """Return the form of a sample, and append its leaves.

    Raises:
        UnstackableError: It contains anything else than plain containers, CPU tensors, arrays and numbers.
    """
    kind = type(sample)
    if kind in (tuple, list):
        return (kind, *(_form(part, leaves) for part in sample))
    if kind is dict:
        return (kind, tuple(sample), *(_form(part, leaves) for part in sample.values()))
    leaves.append(sample)
    if kind in (bool, int, float):
        return (kind,)
    if kind is torch.Tensor and _is_plain(sample):
        return (kind, sample.dtype, sample.shape)
    if (kind is np.ndarray or isinstance(sample, np.generic)) and sample.dtype.kind in "biuf" and sample.itemsize <= 8:
        return (kind, sample.dtype.str, sample.shape)
    raise UnstackableError


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or vars(tensor))
    )


def _columns(sample: Any, num_samples: int) -> list[torch.Tensor]:
    """Return an empty tensor for each leaf, with the dtype that the default collate function gives it."""
    leaves: list[Any] = []
    _form(default_collate([sample, sample]), leaves)
    if not all(type(leaf) is torch.Tensor and leaf.is_contiguous() for leaf in leaves):
        raise UnstackableError
    return [torch.empty((num_samples, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in leaves]


def _tensor(leaf: Any) -> Any:
    return torch.as_tensor(np.array(leaf)) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _leaf(form: Form, row: torch.Tensor) -> Any:
    """Return a leaf of a sample in its own type."""
    kind = form[0]
    if kind is torch.Tensor:
        return row
    if kind is np.ndarray:
        return row.numpy()
    return kind(row.item())


def _built(form: Form, parts: Any, leaf: Callable[[Form, torch.Tensor], Any], of_tuple: type[Any]) -> Any:
    """Return the containers of a form around its parts."""
    kind = form[0]
    if kind is dict:
        return {key: _built(inner, parts, leaf, of_tuple) for key, inner in zip(form[1], form[2:], strict=True)}
    if kind in (tuple, list):
        items = [_built(inner, parts, leaf, of_tuple) for inner in form[1:]]
        return of_tuple(items) if kind is tuple else items
    return leaf(form, next(parts))
