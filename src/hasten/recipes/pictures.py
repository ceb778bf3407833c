"""List and read the image files of a folder, and fit images into a rectangle.

`hasten.data.pictures` decodes image files, as for stores. `.npy` arrays are read by NumPy and converted in the same way.
Unusable files are rejected with an error that names the file.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError
from hasten.recipes.needed import needed

Picture = npt.NDArray[np.uint8]

PADDING = 114
"""Grey level of letterbox padding: the value YOLO detectors are trained with (Darknet and its successors)."""

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
    endings = {".npy", *_decoder().ENDINGS}
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the folder that contains the images.")
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in endings and not path.name.startswith(".") and path.is_file()
    )
    if not paths:
        inner = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        hint = f" It has subfolders ({', '.join(inner[:5])}): give one of them." if inner else ""
        raise DataError(f"{folder} has no images (looked for {', '.join(sorted(endings))}).{hint}")
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
    with _named(path):
        pixels: Picture = _decoder().decode(data)
    return pixels


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
    return _looked_at(path, _decoder().header)


def check_picture(path: Path) -> tuple[int, int]:
    """Return the size as `picture_size` does, and also check the end of the file: truncation is found without decoding.

    JPEG must end with its end marker, and PNG must have correct checksums. Files of other kinds are decoded. For
    arrays, only some rows are checked for type and range.

    Raises:
        DataError: The file is missing, empty, truncated, or not an image. The message names the file.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    if path.suffix.lower() != ".npy":
        return _looked_at(path, _decoder().check)
    size = picture_size(path)
    _rgb(_load_npy(path)[:: 1 + size[0] // 16], path)  # NumPy has compared the array size with the file size
    return size


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


def read_text(path: Path, encoding: str | None = None) -> str:
    """Read a text file: UTF-8 with or without a byte order mark, or UTF-16 and UTF-32 with one.

    Args:
        path: The file.
        encoding: Encoding of a file without a byte order mark; None is UTF-8.

    Raises:
        DataError: The file is missing or in another encoding. The message names the file and the line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    used = next((name for mark, name in _BOMS if data.startswith(mark)), encoding or "utf-8")
    try:
        text = data.decode(used)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        remedy = "" if encoding else ", or give its --encoding, such as latin-1"
        raise BadFileError(
            path, f"byte {data[error.start]:#04x} is not {used.upper()}: save the file as UTF-8{remedy}", line=line
        ) from error
    except LookupError as error:
        raise BadFileError(path, f"Python knows no encoding {used!r}: use a name such as latin-1 or cp1252") from error
    if (position := text.find("\0")) >= 0:
        reason = "it contains a zero byte, as UTF-16 without a byte order mark does: save the file as UTF-8"
        raise BadFileError(path, reason, line=text.count("\n", 0, position) + 1)
    return text.removeprefix("\ufeff")


def decimals(values: npt.NDArray[np.float32]) -> Any:
    """Return coordinates as lists of numbers with one decimal: a float32 becomes 80.1, not 80.0999984741211."""
    return np.round(values.astype(np.float64), 1).tolist()


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


def _decoder() -> Any:
    """Return the module that decodes images. The data layer imports Arrow and PyTorch, which few commands need."""
    return needed("hasten.data.pictures")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in the error of an image that cannot be used."""
    try:
        yield
    except ValueError as error:
        raise BadFileError(path, f"{error}: get it again, or remove it") from error


def _looked_at(path: Path, look: Callable[[mmap], tuple[int, int]]) -> tuple[int, int]:
    """Return what a function finds out about an image file from the parts that it reads."""
    if not path.is_file() or path.stat().st_size == 0:
        _read_bytes(path)  # raises with the reason
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data, _named(path):
            return look(data)
    except OSError as error:
        raise _unreadable(path, error) from error


def _load_npy(path: Path) -> npt.NDArray[Any]:
    """Memory-map an array file, so that only the parts used are read."""
    if not path.is_file() or path.stat().st_size == 0:
        _read_bytes(path)  # raises with the reason
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # NumPy raises arbitrary exceptions on damaged headers
        raise BadFileError(path, f"the image cannot be decoded: {error}: get it again, or remove it") from error
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


def _rgb(array: npt.NDArray[Any], path: Path) -> Picture:
    try:
        pixels: Picture = _decoder().rgb(array)
    except ValueError as error:
        raise BadFileError(path, str(error)) from error
    return pixels


def _unreadable(path: Path, error: OSError) -> BadFileError:
    return BadFileError(path, f"it cannot be read ({error.strerror or error})")
