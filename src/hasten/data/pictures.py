"""Read image files of any common kind as one kind of array: `uint8 [height, width, 3]`, RGB, upright.

Stores and recipes read images here only. Pillow defines the pixels. If simplejpeg is installed, it decodes JPEG files
faster, to the same pixels, because both use libjpeg-turbo. All kinds of pixels are converted in one fixed way:

    orientation     The EXIF (or XMP) orientation is applied, as by Pillow's `exif_transpose`.
    transparency    An alpha channel or a transparent colour is composited on white.
    grey            The value becomes three equal channels; 16 bits are divided by 257 and rounded.
    16-bit colours  Pillow keeps the upper 8 bits.
    floats          Grey from 0 to 1 is multiplied by 255. Other values are refused.
    CMYK            It is converted without a colour profile. JPEG files hold it inverted, as Adobe writes it.
    several frames  The first frame or page is read.

Colour profiles are ignored, as in most training scripts. Damaged files, other kinds of files, and images with more than
179 million pixels (Pillow's limit) are refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.data.resizing import Pixels, pillow, resize

SCALES = (1, 2, 4, 8)
"""Reductions that libjpeg-turbo can apply while decoding."""
ENDINGS = (
    ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".mpo", ".pbm", ".pgm", ".png", ".pnm", ".ppm",
    ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Suffixes of image files, in lower case."""
_FORMATS = ("JPEG", "PNG", "MPO", "WEBP", "TIFF", "BMP", "DIB", "GIF", "PPM", "AVIF", "JPEG2000")
"""Pillow's names of the formats that are read. Others are rare, or start programs, such as Ghostscript for EPS."""
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_ORIENTATION = 0x0112
"""EXIF tag of the orientation: 1 is upright, 2 to 8 as in the EXIF 2.32 standard, section 4.6.4."""
_JPEG_MARKS = (b"Exif\0\0", b"tiff:Orientation")
_PNG_MARKS = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")
"""Bytes without which a file has no orientation. Without them, Pillow would decode a whole PNG file to look for it."""
_PHOTOMETRIC = 262
"""TIFF tag that is 0 if 0 means white."""
_SLACK = 1e-3
"""How far float pixels may exceed the range 0 to 1: resizing overshoots by rounding errors."""
_SLAB_ROWS = 256
"""Number of rows composited at a time, which bounds the memory needed."""


def decode(
    data: bytes | memoryview, size: tuple[int, int] | None = None, out: Pixels | None = None, *, scale: int = 1
) -> Pixels:
    """Decode an image file to `uint8 [height, width, 3]`, RGB, upright.

    Args:
        data: The file's bytes.
        size: Height and width to resize to; None keeps the size that `scale` gives.
        out: Array to write the pixels to, such as the image's row of a batch; None allocates one.
        scale: Decode JPEG files at 1/2, 1/4 or 1/8 of their size, rounded up. This is faster, but the pixels differ from
            decoding at full size and resizing. Other formats are decoded and then resized to the same size.

    Raises:
        ValueError: The data is not an image, is damaged, or does not have the shape of `out`.
        MachineError: Pillow is not installed.
    """
    data = bytes(data)
    pixels = _by_simplejpeg(data, out if size is None else None, scale) if data.startswith(_JPEG) else None
    if pixels is None:
        pixels = _by_pillow(data, scale)
    if size is not None and pixels.shape[:2] != size:
        pixels = resize(pixels, size)
    if out is None or pixels is out:
        return pixels
    if out.shape != pixels.shape:
        raise ValueError(f"the image has the shape {list(pixels.shape)}, not {list(out.shape)}")
    out[...] = pixels
    return out


def scaled_size(height: int, width: int, scale: int) -> tuple[int, int]:
    """Return the height and width of an image decoded at 1/`scale` of its size."""
    return -(-height // scale), -(-width // scale)


def header(data: bytes | mmap) -> tuple[int, int]:
    """Read the height and width of an upright image from the first bytes of its file.

    Raises:
        ValueError: The data is not an image, or has too many pixels.
        MachineError: Pillow is not installed.
    """
    with _opened(data) as opened:
        width, height = opened.size
        return (width, height) if _orientation(opened, data) >= 5 else (height, width)


def check(data: bytes | mmap) -> tuple[int, int]:
    """Return the size as `header` does, and find truncated files without decoding most of them.

    JPEG files must end with their end marker, and PNG files must have correct checksums. Others are decoded.

    Raises:
        ValueError: The data is not an image, is truncated, or has too many pixels.
        MachineError: Pillow is not installed.
    """
    size = header(data)
    if data[:3] == _JPEG and data[-64:].rstrip(b"\0").endswith(b"\xff\xd9"):
        return size
    if data[:8] == _PNG:
        with _opened(data) as opened:
            opened.verify()
        return size
    height, width = decode(data[:]).shape[:2]
    return height, width


def has_frames(data: bytes) -> bool:
    """Return True for a file with several frames or pages, of which only the first is read.

    Raises:
        ValueError: The data is not an image.
        MachineError: Pillow is not installed.
    """
    with _opened(data) as opened:
        return bool(getattr(opened, "is_animated", False))


def rgb(pixels: npt.NDArray[Any]) -> Pixels:
    """Convert pixels to `uint8 [height, width, 3]`, in an array of its own.

    Args:
        pixels: `[height, width]` or `[height, width, 1, 3 or 4]`, of uint8, uint16, or floats from 0 to 1. The fourth
            channel is the alpha channel.

    Raises:
        ValueError: The pixels have another type or range.
    """
    pixels = _eight_bits(np.asarray(pixels))  # np.memmap is a subclass of ndarray
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    height, width, channels = pixels.shape
    if channels == 1:
        return np.repeat(pixels, 3, axis=2)
    if channels == 3:
        return np.array(pixels, order="C")
    on_white: Pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, _SLAB_ROWS):
        part = pixels[top : top + _SLAB_ROWS].astype(np.uint16)
        alpha = part[:, :, 3:]
        on_white[top : top + _SLAB_ROWS] = (part[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255  # at most 65,152
    return on_white


def _by_simplejpeg(data: bytes, out: Pixels | None, scale: int) -> Pixels | None:
    """Decode a JPEG file to the pixels that Pillow gives; None if only Pillow can decode it, or say what is wrong with it.

    Args:
        data: The file's bytes.
        out: Array to decode into. It is used only if it has the image's shape and is contiguous.
        scale: See `decode`.
    """
    fast = _simplejpeg()
    if fast is None:
        return None
    orientation = 1
    if any(mark in data for mark in _JPEG_MARKS):
        with _opened(data) as opened:
            orientation = _orientation(opened, data)
    try:
        height, width, colours, _ = fast.decode_jpeg_header(data)
        if colours in {"CMYK", "YCCK"} or height * width > _most_pixels():
            return None
        height, width = scaled_size(height, width, scale)
        if out is None or orientation != 1 or out.shape != (height, width, 3) or not out.flags.c_contiguous:
            out = np.empty((height, width, 3), np.uint8)
        limits = {"min_height": height, "min_width": width} if scale > 1 else {}
        fast.decode_jpeg(data, "RGB", buffer=out, **limits)
    except ValueError:  # damaged
        return None
    return _upright(out, orientation)


def _by_pillow(data: bytes, scale: int) -> Pixels:
    with _opened(data) as opened:
        orientation = _orientation(opened, data)
        size = scaled_size(opened.height, opened.width, scale)
        if scale > 1:  # only JPEG is decoded at that size
            opened.draft("RGB", (max(opened.width // scale, 1), max(opened.height // scale, 1)))
        pixels = _pixels(opened)
    return _upright(pixels if pixels.shape[:2] == size else resize(pixels, size), orientation)


@contextmanager
def _opened(data: bytes | mmap) -> Iterator[Any]:
    """Open an image with Pillow. Every error becomes a ValueError that says what is wrong."""
    image = pillow()
    formats = [name for name in _FORMATS if name in image.OPEN]
    try:
        with image.open(data if isinstance(data, mmap) else io.BytesIO(data), formats=formats) as opened:
            yield opened
    except MemoryError:
        raise
    except Exception as error:  # decoders raise arbitrary exceptions on damaged files
        text = " ".join(str(error).split()).removesuffix(".")
        detail = "" if not text or "cannot identify" in text else f": {text}"  # that message only repeats the file name
        raise ValueError(f"the image cannot be decoded{detail}") from error


def _pixels(opened: Any) -> Pixels:
    if opened.mode in {"I", "F"} or opened.mode.startswith("I;16"):
        return rgb(_deep(opened))
    if opened.has_transparency_data:
        return rgb(np.asarray(opened.convert("RGBA")))
    return np.array(opened.convert("RGB"))


def _deep(opened: Any) -> npt.NDArray[Any]:
    """Return grey pixels of more than 8 bits as uint16, or floats."""
    grey: npt.NDArray[Any] = np.asarray(opened)
    if opened.mode == "F":
        return grey
    if grey.min() < 0 or grey.max() > 65535:
        raise ValueError(f"its grey levels range from {grey.min()} to {grey.max()}, expected 0 to 65535")
    grey = grey.astype(np.uint16)
    if opened.format == "TIFF" and opened.tag_v2.get(_PHOTOMETRIC) == 0:
        grey = 65535 - grey
    transparent = opened.info.get("transparency")
    if isinstance(transparent, int):
        grey[grey == transparent] = 65535
    return grey


def _eight_bits(pixels: npt.NDArray[Any]) -> Pixels:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2:
        rounded: npt.NDArray[np.uint32] = (pixels.astype(np.uint32) + 128) // 257
        return rounded.astype(np.uint8)
    if pixels.dtype.kind == "f":
        low, high = float(pixels.min()), float(pixels.max())  # NaN if any pixel is NaN
        if not (low >= -_SLACK and high <= 1 + _SLACK):
            raise ValueError(f"its floats range from {low:g} to {high:g}, expected 0 to 1")
        levels: npt.NDArray[np.floating[Any]] = np.rint(np.clip(pixels, 0, 1) * 255)
        return levels.astype(np.uint8)
    raise ValueError(f"pixels of type {pixels.dtype} are not supported: save uint8, uint16, or floats from 0 to 1")


def _orientation(opened: Any, data: bytes | mmap) -> int:
    """Return the orientation of an opened image, 1 to 8. Pillow already applies it to TIFF files."""
    if opened.format == "TIFF" or (opened.format == "PNG" and all(data.find(mark, 0) < 0 for mark in _PNG_MARKS)):
        return 1
    try:
        value = opened.getexif().get(_ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  damaged EXIF in an intact image: Pillow raises arbitrary exceptions
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate and mirror pixels according to their EXIF orientation (section 4.6.4)."""
    if orientation >= 5:  # 5 to 8 are rotated by 90 degrees
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _most_pixels() -> float:
    """Return the number of pixels above which Pillow refuses an image."""
    limit = pillow().MAX_IMAGE_PIXELS
    return float("inf") if limit is None else 2 * limit


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    try:
        import simplejpeg  # noqa: PLC0415  of the extra `images`
    except ImportError:
        return None
    return simplejpeg
