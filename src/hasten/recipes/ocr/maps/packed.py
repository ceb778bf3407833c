"""Target maps as bytes and back: thresholds in 8 bits, masks in one, and a checksum.

A threshold is kept as one of 256 steps from the lowest to the highest, hence within 1 / 510 of their range (0.0008 with the
default 0.3 to 0.7). The masks lose nothing.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.settings import Maps, MapSettings

_HEAD = struct.Struct("<4sIIIff")
"""The layout's mark, the checksum of all that follows it, height, width, lowest and highest threshold."""
_MARK = b"map1"
_CHECKED = 8
"""Bytes before what the checksum covers."""
_STEPS = 255


def pack(maps: Maps, settings: MapSettings) -> bytes:
    """The bytes of the maps of a picture, made with these settings."""
    low, high = settings.thresh_min, settings.thresh_max
    steps = np.rint((maps.thresh - np.float32(low)) * np.float32(_STEPS / (high - low)))
    masks = (maps.shrink, maps.shrink_mask, maps.thresh_mask)
    body = b"".join([
        _HEAD.pack(_MARK, 0, *maps.thresh.shape, low, high)[_CHECKED:],
        np.clip(steps, 0, _STEPS).astype(np.uint8).tobytes(),
        *(np.packbits(mask).tobytes() for mask in masks),
    ])  # fmt: skip
    return _MARK + zlib.crc32(body).to_bytes(4, "little") + body


def unpack(data: bytes | memoryview) -> Maps | None:
    """The maps of bytes; None where they are not what was packed: cut, damaged, or of another layout."""
    if len(data) < _HEAD.size:
        return None
    mark, checksum, height, width, low, high = _HEAD.unpack_from(data)
    if mark != _MARK or zlib.crc32(memoryview(data)[_CHECKED:]) != checksum:
        return None
    size, num_pixels, words = (height, width), height * width, -(-height * width // 8)
    steps = np.frombuffer(data, np.uint8, num_pixels, _HEAD.size)
    bits = np.frombuffer(data, np.uint8, 3 * words, _HEAD.size + num_pixels)
    # One piece of memory: several would go back to the system each time, and fetching them anew can take longer than this.
    room = np.empty(7 * words, np.uint64)
    thresh, masks = room[: 4 * words].view(np.float32)[:num_pixels], room[4 * words :]
    kernels = needed(f"{__package__}.kernels_packed")
    kernels.decode(steps, bits, np.float32(low), np.float32((high - low) / _STEPS), thresh, masks)
    shrink, shrink_mask, thresh_mask = (row.view(np.uint8)[:num_pixels].reshape(size) for row in masks.reshape(3, words))
    return Maps(shrink, shrink_mask, thresh.reshape(size), thresh_mask)
