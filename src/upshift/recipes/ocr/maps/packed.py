"""Target maps as bytes and back: thresholds in 8 bits, masks in one, and a checksum.

A threshold is kept as one of 256 steps from the lowest to the highest, hence within 1 / 510 of their range (0.0008 with the
default 0.3 to 0.7). The masks lose nothing.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from upshift.recipes.ocr.maps.settings import Maps, MapSettings

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
    size, num_pixels = (height, width), height * width
    steps = np.frombuffer(data, np.uint8, num_pixels, _HEAD.size).reshape(size)
    thresh = np.multiply(steps, np.float32((high - low) / _STEPS), dtype=np.float32)
    thresh += np.float32(low)
    bits = np.frombuffer(data, np.uint8, offset=_HEAD.size + num_pixels).reshape(3, -1)
    shrink, shrink_mask, thresh_mask = (np.unpackbits(row, count=num_pixels).reshape(size) for row in bits)
    return Maps(shrink, shrink_mask, thresh, thresh_mask)
