"""Unpack thresholds and masks in one walk each, into memory that the caller gives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps.compiled import kernel

EIGHT_PIXELS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).view(np.uint64).reshape(256)
"""The eight pixels of each byte, a byte each."""


@kernel
def decode(  # noqa: PLR0917  a kernel is called by position
    steps: npt.NDArray[np.uint8],
    bits: npt.NDArray[np.uint8],
    low: np.float32,
    step: np.float32,
    thresh: npt.NDArray[np.float32],
    masks: npt.NDArray[np.uint64],
) -> None:
    """Unpack the maps of a picture.

    Args:
        steps: Thresholds, as steps above the lowest [pixels].
        bits: Masks, eight pixels a byte [n].
        low: The lowest threshold.
        step: How far apart two steps are.
        thresh: Written [pixels].
        masks: Written, eight pixels a word [n].
    """
    for i in range(len(steps)):
        thresh[i] = np.float32(steps[i]) * step + low
    for i in range(len(bits)):
        masks[i] = EIGHT_PIXELS[bits[i]]
