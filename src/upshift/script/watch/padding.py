"""Padding that can be seen from outside: positions at the end of a batch of numbers that are the same in all its rows.

Rows of whole numbers, `[rows, length]`, are what token ids, masks and labels of padded texts look like. A run of columns at
their end that hold one value each, the same for every row, is computed for nothing. How much that is worth is measured by a
run in which the loader's batches are cut there.
"""

from __future__ import annotations

from typing import Any

import torch

from upshift.core.batch import iter_tensors, map_tensors

LOOKED_AT = 16
"""So many batches are looked at."""
LEAST_ROWS, LEAST_LENGTH = 2, 16
"""Fewer rows may agree by chance; what is shorter is no sequence."""
WORTH_A_RUN = 0.1
"""Less padding than this share of all positions is not worth a run without it."""
_DIMS = 2


class Padding:
    """What was seen of padding in the first batches.

    Args:
        cuts: Cut each batch as well, in place of looking.
    """

    def __init__(self, *, cuts: bool = False) -> None:
        self.cuts = cuts
        self._batches = self._kept = self._positions = 0

    @property
    def frac(self) -> float:
        """Share of all positions that is padding in every row of its batch."""
        return 1.0 - self._kept / self._positions if self._positions else 0.0

    def look(self, batch: Any) -> None:
        """Look at a batch, unless enough were looked at."""
        if self.cuts or self._batches >= LOOKED_AT:
            return
        self._batches += 1
        try:
            found = kept_length(batch)
        except RuntimeError:  # a kind of tensor that cannot be compared: nothing is known of it
            return
        if found is not None:
            self._kept += found[0]
            self._positions += found[1]


def kept_length(batch: Any) -> tuple[int, int] | None:
    """How many positions of the longest rows of whole numbers hold something, and how many there are.

    None where the batch holds no rows of whole numbers, or where all of them are alike.
    """
    rows = [tensor for tensor in iter_tensors(batch) if _are_rows(tensor)]
    length = max((tensor.shape[1] for tensor in rows), default=0)
    kept = max((_kept(tensor) for tensor in rows if tensor.shape[1] == length), default=0)
    return (kept, length) if kept else None


def cut_padding(batch: Any) -> Any:
    """The batch without the positions that are padding in all its rows; the batch itself where there are none."""
    found = kept_length(batch)
    if found is None or found[0] == found[1]:
        return batch
    kept, length = found

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < _DIMS or tensor.shape[1] != length:
            return tensor
        return tensor[:, :kept].contiguous()  # the script may call view() on it

    return map_tensors(batch, cut)


def _are_rows(tensor: torch.Tensor) -> bool:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return whole and tensor.dim() == _DIMS and tensor.shape[0] >= LEAST_ROWS and tensor.shape[1] >= LEAST_LENGTH


def _kept(rows: torch.Tensor) -> int:
    """Columns up to the last one that differs from the value at the end of the first row."""
    used = (rows != rows[0, -1]).any(dim=0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
