"""Image files of a batch as one array of pixels, in memory that is used again."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from hasten.core.errors import DataError
from hasten.data.pictures import SCALES, decode, header, scaled_size
from hasten.data.stream.batch import Batch
from hasten.data.stream.buffers import Buffers

_MOST_BUFFERS = 16
"""Batches whose memory is kept: no more are made than are prepared ahead and held at a time."""


class DecodeImages:
    """A `transform` that decodes the image files of a column: `uint8 [samples, height, width, 3]`, RGB.

        Stream("photos", batch_size=32, workers=2, transform=DecodeImages("image", size=(240, 320)))

    Pixels go to their place in the batch at once, and as with all batches of a stream, its memory is used again when nobody
    holds the batch any longer.

    Args:
        column: Of the files' bytes.
        size: Height and width to resize to; None where all pictures of a batch are of one size.
        form: What the pixels come as.
        scale: Decode JPEG files at 1/2, 1/4 or 1/8 of their size, before they are resized: faster, but with other pixels.

    Raises:
        DataError: An argument is wrong, a batch has no such column, a file is damaged, or of another size than the others.
    """

    def __init__(
        self,
        column: str = "image",
        *,
        size: tuple[int, int] | None = None,
        form: Literal["torch", "numpy"] = "torch",
        scale: Literal[1, 2, 4, 8] = 1,
    ) -> None:
        if form not in {"torch", "numpy"}:
            raise DataError(f"form must be torch or numpy, not {form!r}.")
        if size is not None and min(size) < 1:
            raise DataError(f"size is a height and a width of at least 1, not {size}.")
        if scale not in SCALES:
            raise DataError(f"scale must be 1, 2, 4 or 8, not {scale}.")
        self._column, self._size, self._form, self._scale = column, size, form, scale
        self._buffers = Buffers(most=_MOST_BUFFERS)

    def __call__(self, batch: Batch) -> Batch:
        """The batch, its column decoded."""
        if self._column not in batch:
            raise DataError(f"there is no column {self._column!r} to decode: the batch has {', '.join(batch)}.")
        files = batch[self._column].to_pylist()
        size, row = self._size or (0, 0), 0
        try:
            if self._size is None and files:
                size = scaled_size(*header(_bytes(files[0])), self._scale)
            pixels = self._buffers.empty((len(files), *size, 3), np.dtype(np.uint8))
            for row, data in enumerate(files):
                decode(_bytes(data), self._size, pixels[row], scale=self._scale)
        except ValueError as error:
            raise DataError(
                f"{_name(batch, row)} cannot be used: {error}. Convert the folder again, which keeps damaged files apart, "
                f"or give a size where pictures differ in theirs."
            ) from error
        batch[self._column] = torch.from_numpy(pixels) if self._form == "torch" else pixels
        return batch


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise ValueError(f"it is no file's bytes, but {type(data).__name__}")  # noqa: TRY004  as what cannot be decoded
    return data


def _name(batch: Batch, row: int) -> str:
    """What a person finds the picture by: its path, as converted folders keep it."""
    return str(batch["path"][row]) if "path" in batch else f"picture {row} of a batch"
