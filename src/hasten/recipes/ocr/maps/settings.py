"""What target maps are, and the settings that decide about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hasten.core.errors import JobError


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """How target maps are made; the defaults are those of the paper (Liao et al., AAAI 2020) and its code.

    Attributes:
        shrink_ratio: How far text is shrunk, r of D = A (1 - r^2) / L: between 0 and 1, without both.
        thresh_min: The threshold map far from any border.
        thresh_max: The threshold map on a border.
        min_text_size: Text that is less high or less wide than that is not trained, in pixels; 0 trains all.
        kernel: `exact` is what the official code gives; `fast` is a signed distance, see `fast`.

    Raises:
        JobError: A setting is out of its range.
    """

    shrink_ratio: float = 0.4
    thresh_min: float = 0.3
    thresh_max: float = 0.7
    min_text_size: float = 8.0
    kernel: Literal["exact", "fast"] = "exact"

    def __post_init__(self) -> None:
        if not 0 < self.shrink_ratio < 1:
            raise JobError(f"shrink_ratio must lie between 0 and 1, not at {self.shrink_ratio}.")
        if not 0 <= self.thresh_min < self.thresh_max <= 1:
            raise JobError(f"thresholds must rise within 0 to 1, not from {self.thresh_min} to {self.thresh_max}.")
        if not self.min_text_size >= 0:
            raise JobError(f"min_text_size must be 0 or more pixels, not {self.min_text_size}.")
        if self.kernel not in {"exact", "fast"}:
            raise JobError(f"kernel must be exact or fast, not {self.kernel!r}.")


@dataclass(frozen=True, eq=False)
class Maps:
    """The four target maps of a picture.

    Attributes:
        shrink: 1 in the shrunk text, 0 elsewhere: uint8 [height, width].
        shrink_mask: 0 where `shrink` is not trained (ignored and vanished text), 1 elsewhere: uint8 [height, width].
        thresh: From thresh_min to thresh_max, the latter on the borders of text: float32 [height, width].
        thresh_mask: 1 where `thresh` is trained, in text and around it, 0 elsewhere: uint8 [height, width].
    """

    shrink: npt.NDArray[np.uint8]
    shrink_mask: npt.NDArray[np.uint8]
    thresh: npt.NDArray[np.float32]
    thresh_mask: npt.NDArray[np.uint8]
