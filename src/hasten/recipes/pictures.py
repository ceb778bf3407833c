"""Read image files of any common kind as one kind of array: `uint8 [height, width, 3]`, RGB, upright.

JPEG is decoded by simplejpeg if it is installed. Everything else, and any JPEG that simplejpeg rejects, is decoded by
Pillow; `.npy` is read by NumPy. Other pixel formats are converted in one fixed way: the EXIF orientation is applied, 16 bits
become 8 through division by 257, grey becomes three equal channels, and transparent pixels are composited on white. Unusable
files are rejected with an error that names the file. (For PNGs with 16 bits *per channel*, Pillow itself keeps the upper 8
bits.)
"""

from __future__ import annotations

import codecs
import io
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError
from hasten.recipes.needed import needed

Picture = npt.NDArray[np.uint8]

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpe", ".jpeg", ".jpg", ".npy", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"},
)
"""File suffixes that count as images, in lower case."""

PADDING = 114
"""Grey level of letterbox padding: the value YOLO detectors are trained with (Darknet and its successors)."""

_ORIENTATION = 0x0112
"""EXIF tag of the orientation: 1 is upright, 2 to 8 as in the EXIF 2.32 standard, section 4.6.4."""
_SLACK = 1e-3
"""How far float pixels may exceed the range 0 to 1: resizing overshoots by rounding errors."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is a prefix of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def list_pictures(folder: Path) -> list[Path]:
    """Return the image files of a folder, without its subfolders, sorted by name.

    Raises:
        DataError: The folder is missing, has no images, or has two images with the same stem: their labels would be
            ambiguous.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the folder that contains the images.")
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    if not paths:
        inner = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        hint = f" It has subfolders ({', '.join(inner[:5])}): give one of them." if inner else ""
        raise DataError(f"{folder} has no images (looked for {', '.join(sorted(SUFFIXES))}).{hint}")
    first: dict[str, Path] = {}
    duplicates = [
        f"{first[path.stem].name} and {path.name}" for path in paths if first.setdefault(path.stem, path) is not path
    ]
    if duplicates:
        more = f", and {len(duplicates) - 3} more" if len(duplicates) > 3 else ""
        raise DataError(
            f"{folder} has images with the same name: {'; '.join(duplicates[:3])}{more}. "
            f"Their labels would be ambiguous: rename or remove one of each."
        )
    return paths


def read_picture(path: Path) -> Picture:
    """Read an image file as `uint8 [height, width, 3]`, RGB, upright. The array owns its memory.

    Raises:
        DataError: The file is missing, empty, corrupt, or not an image. The message names the file.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return _rgb(_load_npy(path), path)
    data = _read_bytes(path)
    if data[:3] == b"\xff\xd8\xff":
        from hasten.data.pictures import decode_jpeg  # noqa: PLC0415  the data layer imports Arrow, which few commands need

        try:
            pixels = decode_jpeg(data)
        except ValueError:  # corrupt: Pillow's error says how
            return _by_pillow(data, path)
        return _upright(pixels, _jpeg_orientation(data, path))
    return _by_pillow(data, path)


def write_picture(path: Path, image: Picture) -> None:
    """Write an image in the format given by the file's suffix.

    Args:
        path: The file. JPEG is written with quality 90.
        image: `uint8 [height, width, 3]`, RGB.

    Raises:
        OSError: The file cannot be written.
        MachineError: Pillow is not installed.
    """
    needed("PIL.Image").fromarray(image).save(path, quality=90)


def picture_size(path: Path) -> tuple[int, int]:
    """Return the height and width of an image file, as `read_picture` would give it, from its header alone.

    Raises:
        DataError: The file is missing, empty, or not an image. The message names the file. Damage after the header goes
            undetected.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        height, width = _npy_shape(_load_npy(path).shape, path)
        return height, width
    pil = needed("PIL.Image")
    if not path.is_file() or path.stat().st_size == 0:
        _read_bytes(path)  # raises with the reason
    try:
        with pil.open(path) as opened:
            width, height = opened.size
            is_rotated = _orientation(opened) >= 5
    except MemoryError:
        raise
    except Exception as error:  # decoders raise arbitrary exceptions on damaged headers
        raise _undecodable(path, error) from error
    return (width, height) if is_rotated else (height, width)


def check_picture(path: Path) -> tuple[int, int]:
    """Return the size as `picture_size` does, and also check the end of the file: truncation is found without decoding.

    JPEG must end with its end marker, and PNG must have correct checksums. Files that fail this check, and files of other
    kinds, are decoded. For arrays, only some rows are checked for type and range.

    Raises:
        DataError: The file is missing, empty, truncated, or not an image. The message names the file.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    size = picture_size(path)
    if path.suffix.lower() == ".npy":  # NumPy has compared the array size with the file size
        _rgb(_load_npy(path)[:: 1 + size[0] // 16], path)
        return size
    if _has_intact_end(path):
        return size
    height, width = read_picture(path).shape[:2]
    return height, width


def fit(image: Picture, size: tuple[int, int]) -> tuple[Picture, tuple[float, float], tuple[int, int]]:
    """Fit an image into a rectangle, centred, with its aspect ratio kept and grey padding.

    Args:
        image: `uint8 [height, width, 3]`.
        size: Height and width of the rectangle.

    Returns:
        The rectangle; the scales in x and y, which differ by rounding to whole pixels; the image's left and top in the
        rectangle.
    """
    height, width = image.shape[:2]
    scale = min(size[0] / height, size[1] / width)
    inner_height, inner_width = max(1, round(height * scale)), max(1, round(width * scale))
    left, top = (size[1] - inner_width) // 2, (size[0] - inner_height) // 2
    fitted: Picture = np.full((*size, 3), PADDING, dtype=np.uint8)
    inside = fitted[top : top + inner_height, left : left + inner_width]
    if (inner_height, inner_width) == (height, width):
        inside[:] = image
    else:
        cv2 = opencv()
        interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        inside[:] = cv2.resize(image, (inner_width, inner_height), interpolation=interpolation)
    return fitted, (inner_width / width, inner_height / height), (left, top)


def letterbox(image: Picture, size: int) -> tuple[Picture, float, tuple[int, int]]:
    """Fit an image into a square, centred, with its aspect ratio kept and grey padding.

    Args:
        image: `uint8 [height, width, 3]`.
        size: Side of the square in pixels.

    Returns:
        The square `uint8 [size, size, 3]`, which owns its memory; the scale (square pixels per image pixel); and the image's
        left and top in the square, in pixels. A point (x, y) moves to (x * scale + left, y * scale + top).

    Raises:
        MachineError: OpenCV is not installed.
    """
    square, _, place = fit(image, (size, size))
    return square, size / max(image.shape[:2]), place


def read_text(path: Path) -> str:
    """Read a text file: UTF-8 with or without a byte order mark, or UTF-16 and UTF-32 with one.

    Raises:
        DataError: The file is missing or in another encoding. The message names the file and the line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadFileError(
            path, f"byte {data[error.start]:#04x} is not {encoding.upper()}: save the file as UTF-8", line=line
        ) from error
    if (position := text.find("\0")) >= 0:
        reason = "it contains a zero byte, as UTF-16 without a byte order mark does: save the file as UTF-8"
        raise BadFileError(path, reason, line=text.count("\n", 0, position) + 1)
    return text.removeprefix("\ufeff")


@lru_cache(maxsize=1)
def opencv() -> Any:
    """Return OpenCV, set to use only the calling thread: samples are already prepared in parallel.

    Raises:
        MachineError: OpenCV is not installed.
    """
    cv2 = needed("cv2")
    cv2.setNumThreads(1)
    return cv2


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not data:
        raise BadFileError(path, "the file is empty: get the image again, or remove it")
    return data


def _by_pillow(data: bytes, path: Path) -> Picture:
    pil = needed("PIL.Image")
    try:
        with pil.open(io.BytesIO(data)) as opened:
            orientation = _orientation(opened)
            pixels = _pixels(opened)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise arbitrary exceptions on damaged files
        raise _undecodable(path, error) from error
    return _upright(_rgb(pixels, path), orientation)


def _pixels(opened: Any) -> npt.NDArray[Any]:
    """Return the pixels of an image opened with Pillow, at their stored bit depth."""
    if opened.mode in {"I", "F"} or opened.mode.startswith("I;16"):
        grey = np.asarray(opened)
        if opened.mode == "I" and grey.size and grey.min() >= 0 and grey.max() <= 65535:
            return grey.astype(np.uint16)
        return grey.astype(np.uint16) if opened.mode.startswith("I;16") else grey
    has_alpha = opened.mode in {"LA", "La", "PA", "RGBA", "RGBa"} or "transparency" in opened.info
    return np.asarray(opened.convert("RGBA" if has_alpha else "RGB"))


def _load_npy(path: Path) -> npt.NDArray[Any]:
    """Memory-map an array file, so that only the parts used are read."""
    if not path.is_file() or path.stat().st_size == 0:
        _read_bytes(path)  # raises with the reason
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # NumPy raises arbitrary exceptions on damaged headers
        raise _undecodable(path, error) from error
    _npy_shape(array.shape, path)
    return array


def _npy_shape(shape: tuple[int, ...], path: Path) -> tuple[int, int]:
    if len(shape) not in {2, 3} or (len(shape) == 3 and shape[2] not in {1, 3, 4}) or 0 in shape:
        hint = ""
        if len(shape) == 3 and shape[0] in {1, 3, 4}:
            hint = ": the channels come first, so save array.transpose(1, 2, 0)"
        wanted = "[height, width] or [height, width, 1, 3 or 4]"
        raise BadFileError(path, f"an array of shape {list(shape)} is not an image, expected {wanted}{hint}")
    return shape[0], shape[1]


def _has_intact_end(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(8)
            file.seek(-min(64, path.stat().st_size), io.SEEK_END)
            tail = file.read()
    except OSError as error:
        raise _unreadable(path, error) from error
    if head[:3] == b"\xff\xd8\xff":
        return tail.rstrip(b"\0").endswith(b"\xff\xd9")
    if head != b"\x89PNG\r\n\x1a\n":
        return False
    try:
        with needed("PIL.Image").open(path) as opened:
            opened.verify()
    except (OSError, SyntaxError, ValueError, EOFError, struct.error):
        return False
    return True


def _rgb(array: npt.NDArray[Any], path: Path) -> Picture:
    """Convert pixels of any kind to `uint8 [height, width, 3]`."""
    pixels = _eight_bits(np.asarray(array), path)  # np.memmap is a subclass of ndarray
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    if pixels.shape[2] == 4:
        alpha = pixels[:, :, 3:].astype(np.uint32)
        on_white: npt.NDArray[np.uint32] = (pixels[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
        return on_white.astype(np.uint8)
    return np.array(pixels, order="C")


def _eight_bits(array: npt.NDArray[Any], path: Path) -> Picture:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        rounded: npt.NDArray[np.uint32] = (array.astype(np.uint32) + 128) // 257
        return rounded.astype(np.uint8)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())  # NaN if any pixel is NaN
        if not (low >= -_SLACK and high <= 1 + _SLACK):
            raise BadFileError(path, f"its floats range from {low:g} to {high:g}, expected 0 to 1")
        levels: npt.NDArray[np.floating[Any]] = np.rint(np.clip(array, 0, 1) * 255)
        return levels.astype(np.uint8)
    raise BadFileError(path, f"pixels of type {array.dtype} are not supported: save uint8, uint16, or floats from 0 to 1")


def _orientation(opened: Any) -> int:
    """Return the EXIF orientation of an opened image, 1 to 8. Pillow already applies it to TIFF files."""
    if opened.format == "TIFF" or "exif" not in opened.info:
        return 1
    try:
        value = opened.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, TypeError, KeyError, OSError, struct.error):  # damaged EXIF in an intact image
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _jpeg_orientation(data: bytes, path: Path) -> int:
    if b"Exif\0\0" not in data:
        return 1
    try:
        with needed("PIL.Image").open(io.BytesIO(data)) as opened:
            return _orientation(opened)
    except (OSError, SyntaxError, ValueError) as error:
        raise _undecodable(path, error) from error


def _upright(pixels: Picture, orientation: int) -> Picture:
    """Rotate and mirror pixels according to their EXIF orientation (section 4.6.4)."""
    if orientation >= 5:  # 5 to 8 are rotated by 90 degrees
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _unreadable(path: Path, error: OSError) -> BadFileError:
    return BadFileError(path, f"it cannot be read ({error.strerror or error})")


def _undecodable(path: Path, error: Exception) -> BadFileError:
    detail = str(error).replace("\n", " ").removesuffix(".")
    detail = "" if not detail or "cannot identify" in detail else f" ({detail})"  # that message only repeats the file name
    return BadFileError(path, f"it is corrupt or not a supported image{detail}: get it again, or remove it")
