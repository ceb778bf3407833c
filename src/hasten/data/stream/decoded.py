"""Decode the image files of a batch into one array of pixels, in reused memory."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from hasten.core.errors import DataError
from hasten.data.pictures import SCALES, decode, header, scaled_size
from hasten.data.stream.batch import Batch
from hasten.data.stream.buffers import Buffers

_MOST_BUFFERS = 16
"""Number of batches whose memory is kept: more than are prepared ahead or in use at a time."""


class DecodeImages:
    """Decode the image files of a column to `uint8 [samples, height, width, 3]`, RGB. Use it as a `transform`.

        Stream("photos", batch_size=32, workers=2, transform=DecodeImages("image", size=(240, 320)))

    Pixels are decoded directly into the batch. As with all batches of a stream, the memory is reused when the batch is no
    longer referenced.

    Args:
        column: Column with the bytes of the files.
        size: Height and width to resize to; None requires all images of a batch to have the same size.
        form: Type of the pixel array.
        scale: Decode JPEG files at 1/2, 1/4 or 1/8 of their size before resizing: faster, with slightly different pixels.

    Raises:
        DataError: An argument is invalid, the column is missing, a file is damaged, or image sizes differ.
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
            raise DataError(f"size must be a height and a width of at least 1, not {size}.")
        if scale not in SCALES:
            raise DataError(f"scale must be 1, 2, 4 or 8, not {scale}.")
        self._column, self._size, self._form, self._scale = column, size, form, scale
        self._buffers = Buffers(most=_MOST_BUFFERS)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its column decoded."""
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
                f"{_name(batch, row)} cannot be used: {error}. Convert the folder again, which quarantines damaged files, "
                f"or set a size if the sizes of the images differ."
            ) from error
        batch[self._column] = torch.from_numpy(pixels) if self._form == "torch" else pixels
        return batch


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise ValueError(f"expected the bytes of a file, not {type(data).__name__}")  # noqa: TRY004  like any undecodable file
    return data


def _name(batch: Batch, row: int) -> str:
    """Return a name for messages: the path of the image if the batch has a column with paths."""
    return str(batch["path"][row]) if "path" in batch else f"image {row} of a batch"
