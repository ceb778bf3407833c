"""Decode JPEG files by the kernels, once a process has decoded so many pixels that loading them pays."""

from __future__ import annotations

import sys
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.data.jpeg.header import read_header
from hasten.data.kernels import kernels_of

Pixels = npt.NDArray[np.uint8]
_WORTH_LOADING = 2**28
"""Pixels from which kernels are loaded: about as long as loading takes is spared by as many."""
_MOST_KEPT_BYTES = 2**26
"""Of what a thread decodes in: 40 million pixels."""


class _Decoded:
    """Pixels that this process decoded and kernels could have; about, since threads may count at once."""

    num_pixels = 0


class _Memory(threading.local):
    """What this thread decodes in, as large as its largest picture needs."""

    work: Pixels = np.empty(0, np.uint8)


_MEMORY = _Memory()


def decode_jpeg(data: bytes | memoryview, size: tuple[int, int] | None = None, out: Pixels | None = None) -> Pixels | None:
    """The pixels of a JPEG file, `uint8 [height, width, 3]`, RGB, as libjpeg-turbo's accurate transform gives them.

    Args:
        data: The file's bytes.
        size: Height and width wanted: where these are half the picture's, it may come halved, each pixel the mean over two
            by two, rounded half up. Otherwise, and for any other size, it comes whole.
        out: Where to, if that is of use; whoever gives it looks whether it was.

    Returns:
        The pixels; None where neither simplejpeg is installed nor Numba, which decodes most files of a process that has
        decoded a lot.

    Raises:
        ValueError: The file is damaged, or of a kind that simplejpeg does not know.
    """
    data = plain(data)
    if (found := by_kernels(data, size, out)) is not None or (fast := _simplejpeg()) is None:
        return found
    pixels: Pixels = fast.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
    return pixels


def by_kernels(data: bytes | memoryview, size: tuple[int, int] | None = None, out: Pixels | None = None) -> Pixels | None:
    """The same by the kernels alone; None where these do not know such a file or find it damaged, or are not loaded."""
    data = plain(data)
    picture = read_header(data)
    if picture is None or not _worth_loading(picture.height * picture.width) or (kernel := _kernel()) is None:
        return None
    tables = kernel.tables_of(picture.header)
    if tables is None:
        return None
    height, width, scan = picture.height, picture.width, picture.scan
    halve = size is not None and (2 * size[0], 2 * size[1]) == (height, width)
    shape = (height // 2, width // 2, 3) if halve else (height, width, 3)
    fits = (
        out is not None and out.shape == shape and out.dtype == np.uint8 and out.flags.c_contiguous and out.flags.writeable
    )
    found: Pixels = out if fits and out is not None else np.empty(shape, np.uint8)
    file = np.frombuffer(data, np.uint8)
    work = _work(kernel.work_bytes(len(file) - scan, height, width))
    state = kernel.decode_into(file, scan, *tables, work, found, height, width, halve)
    return found if state == kernel.FINE else None


def plain(data: bytes | memoryview) -> bytes | memoryview:
    """A file's bytes as numbers from 0 to 255: a buffer of Arrow's calls its own signed."""
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def _work(num_bytes: int) -> Pixels:
    """Memory of at least so many bytes; kept for the next picture, unless it is more than most of them need."""
    if num_bytes > _MOST_KEPT_BYTES:
        return np.empty(num_bytes, np.uint8)
    if len(_MEMORY.work) < num_bytes:
        _MEMORY.work = np.empty(num_bytes, np.uint8)
    return _MEMORY.work


def _worth_loading(num_pixels: int) -> bool:
    if _Decoded.num_pixels < _WORTH_LOADING:
        _Decoded.num_pixels += num_pixels
    return _Decoded.num_pixels >= _WORTH_LOADING


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The kernel, compiled once for this machine; None where Numba is not installed, or has no place to keep it."""
    if sys.byteorder != "little":  # pixels are put together in numbers of several bytes
        return None
    return kernels_of("hasten.data.jpeg.kernel", "JPEG files are decoded")


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    """The decoder of a library, where it is installed."""
    try:
        import simplejpeg  # noqa: PLC0415  of the extra `images`
    except ImportError:
        return None
    return simplejpeg
