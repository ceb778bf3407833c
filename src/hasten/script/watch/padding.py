"""How much of a script's batches is padding, as far as it can be seen from outside (`hasten.core.batch`).

How much that is worth is measured by a run in which the loader's batches are cut there.
"""

from __future__ import annotations

from typing import Any

from hasten.core.batch import cut_at, kept_length

LOOKED_AT = 16
"""So many batches are looked at."""
WORTH_A_RUN = 0.1
"""Less padding than this share of all positions is not worth a run without it."""


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


def cut_padding(batch: Any) -> Any:
    """The batch without the positions that are padding in all its rows; the batch itself where there are none."""
    found = kept_length(batch)
    return batch if found is None or found[0] == found[1] else cut_at(batch, found[1], found[0])
