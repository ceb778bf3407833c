"""Define a batch: columns by name, the number of samples, and their form: Arrow, NumPy or torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import torch

Form: TypeAlias = Literal["arrow", "numpy", "torch"]
FORMS: tuple[Form, ...] = ("arrow", "numpy", "torch")
Columns: TypeAlias = dict[str, Any]
"""Columns by name: a `pyarrow.Array`, a NumPy array of a raw column, or a list of strings or views."""


class Batch(dict[str, Any]):
    """Hold columns by name. A batch is a dictionary, which models and frameworks accept.

    Args:
        columns: Columns by name, all with the same number of samples.
        num_rows: Number of samples.

    Attributes:
        num_rows: As given; 0 only on a rank without a share of the last batch.
    """

    def __init__(self, columns: Mapping[str, Any] = (), num_rows: int = 0) -> None:  # type: ignore[assignment]
        super().__init__(columns)
        self.num_rows = num_rows


def formed(columns: Columns, form: Form) -> Mapping[str, Any]:
    """Convert the columns of a batch to a form.

    Numbers become arrays or tensors without a copy. Columns that cannot be arrays (text, lists of different lengths, columns
    with nulls) stay Arrow in every form; `to_pylist()` converts them to Python objects.
    """
    convert = _FORMED[form]
    return {name: convert(values) for name, values in columns.items()}


def _arrow(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    return pa.array(values) if values.ndim == 1 else pa.FixedShapeTensorArray.from_numpy_ndarray(values)


def _numpy(values: Any) -> Any:
    if not isinstance(values, pa.Array) or values.null_count:
        return values
    kind = values.type
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and kind.bit_width >= 8:
        array = np.frombuffer(values.buffers()[1], kind.to_pandas_dtype(), len(values) + values.offset)[values.offset :]
        return array if array.flags.writeable else array.copy()
    if pa.types.is_boolean(kind):
        return values.to_numpy(zero_copy_only=False)
    return values


def _torch(values: Any) -> Any:
    numbers = _numpy(values)
    return torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else numbers


_FORMED: Mapping[Form, Callable[[Any], Any]] = {"arrow": _arrow, "numpy": _numpy, "torch": _torch}
