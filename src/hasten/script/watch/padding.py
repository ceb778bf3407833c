"""Measure how much of a script's batches is padding, as far as the batches show it (`hasten.core.batch`).

The possible gain is measured by a run that trims the padding from the loader's batches.
"""

from __future__ import annotations

from typing import Any

from hasten.core.batch import cut_at, kept_length

LOOKED_AT = 16
"""Number of batches that are examined."""
WORTH_A_RUN = 0.1
"""Share of padding positions below which a run without padding is not worthwhile."""


class Padding:
    """The share of padding in the first batches.

    Args:
        cuts: Trim each batch instead of measuring.
    """

    def __init__(self, *, cuts: bool = False) -> None:
        self.cuts = cuts
        self._batches = self._kept = self._positions = 0

    @property
    def frac(self) -> float:
        """Share of all positions that are padding in every row of their batch."""
        return 1.0 - self._kept / self._positions if self._positions else 0.0

    def look(self, batch: Any) -> None:
        """Measure a batch, unless enough batches were measured."""
        if self.cuts or self._batches >= LOOKED_AT:
            return
        self._batches += 1
        try:
            lengths = kept_length(batch)
        except RuntimeError:  # a kind of tensor that cannot be compared
            return
        if lengths is not None:
            self._kept += lengths[0]
            self._positions += lengths[1]


def cut_padding(batch: Any) -> Any:
    """Return the batch without the positions that are padding in all its rows, or the same batch if there are none."""
    lengths = kept_length(batch)
    return batch if lengths is None or lengths[0] == lengths[1] else cut_at(batch, lengths[1], lengths[0])
