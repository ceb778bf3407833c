"""A batch: columns by name, and how many samples they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa


class Batch(dict[str, Any]):
    """Columns by name: a dictionary, as models and frameworks take it.

    Args:
        columns: By name, all of the same number of samples.
        num_rows: That number.

    Attributes:
        num_rows: As given; 0 only on a rank that has no share of a last batch.
    """

    def __init__(self, columns: Mapping[str, Any] = (), num_rows: int = 0) -> None:  # type: ignore[assignment]
        super().__init__(columns)
        self.num_rows = num_rows

    def to_arrow(self) -> pa.RecordBatch:
        """The columns as an Arrow record batch, numbers without a copy."""
        arrays = []
        for values in self.values():
            array = values if isinstance(values, (pa.Array, list)) else np.asarray(values)
            if isinstance(array, np.ndarray) and array.ndim > 1:
                array = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))
            arrays.append(array if isinstance(array, pa.Array) else pa.array(array))
        return pa.RecordBatch.from_arrays(arrays, names=list(self))
