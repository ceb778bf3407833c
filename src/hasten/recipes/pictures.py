"""Pictures as people have them, as one kind of array: `uint8 [height, width, 3]`, RGB, upright.

JPEG is decoded by simplejpeg where it is installed, everything else (and JPEG that it refuses) by Pillow, `.npy` by NumPy.
What is stored otherwise is converted once and in one way: the orientation of EXIF is applied, 16 bits become 8 by a
division by 257, grey becomes three equal channels, and what is transparent is laid on white. What cannot be used is
refused with the file's name. (Of PNGs with 16 bits *a colour* Pillow itself keeps the upper 8 bits.)
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
"""Endings of the files that count as pictures, in small letters."""

PADDING = 114
"""The grey beside a letterboxed picture: the one that YOLO detectors are trained with (darknet and its successors)."""

_ORIENTATION = 0x0112
"""The EXIF tag that says how a picture lies: 1 upright, 2 to 8 as in the EXIF 2.32 standard, section 4.6.4."""
_SLACK = 1e-3
"""How far floats may leave 0..1: a resized picture overshoots by roundings."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def list_pictures(folder: Path) -> list[Path]:
    """The picture files of a folder (not of folders in it), sorted by name.

    Raises:
        DataError: There is no such folder, no picture in it, or two pictures of one name: labels could belong to either.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: give the folder in which the pictures lie.")
    found = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    if not found:
        inner = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        hint = f" It holds folders ({', '.join(inner[:5])}): give one of them." if inner else ""
        raise DataError(f"{folder} holds no picture (looked for {', '.join(sorted(SUFFIXES))}).{hint}")
    first: dict[str, Path] = {}
    twice = [f"{first[path.stem].name} and {path.name}" for path in found if first.setdefault(path.stem, path) is not path]
    if twice:
        more = f", and {len(twice) - 3} more" if len(twice) > 3 else ""
        raise DataError(
            f"{folder} has pictures of the same name: {'; '.join(twice[:3])}{more}. "
            f"Their labels could not be told apart: rename or remove one of each."
        )
    return found


def read_picture(path: Path) -> Picture:
    """Read a picture file: `uint8 [height, width, 3]`, RGB, upright, in memory of its own.

    Raises:
        DataError: The file is missing, empty, damaged, or no picture; names it.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return _rgb(_load_npy(path), path)
    data = _read_bytes(path)
    if data[:3] == b"\xff\xd8\xff":
        from hasten.data.pictures import decode_jpeg  # noqa: PLC0415  the data layer brings Arrow, which few verbs need

        try:
            pixels = decode_jpeg(data)
        except ValueError:  # damaged: Pillow says how
            return _by_pillow(data, path)
        return _upright(pixels, _jpeg_orientation(data, path))
    return _by_pillow(data, path)


def write_picture(path: Path, picture: Picture) -> None:
    """Write a picture as a file of the kind that its name says.

    Args:
        path: The file; a JPEG gets the quality 90.
        picture: `uint8 [height, width, 3]`, RGB.

    Raises:
        OSError: It cannot be written.
        MachineError: Pillow is not installed.
    """
    needed("PIL.Image").fromarray(picture).save(path, quality=90)


def picture_size(path: Path) -> tuple[int, int]:
    """Height and width of a picture file as `read_picture` would give it, read from its header alone.

    Raises:
        DataError: The file is missing, empty, or no picture; names it. A damage behind the header stays unseen.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        height, width = _npy_shape(_load_npy(path).shape, path)
        return height, width
    image = needed("PIL.Image")
    if not path.is_file() or path.stat().st_size == 0:
        _read_bytes(path)  # says why
    try:
        with image.open(path) as opened:
            width, height = opened.size
            turned = _orientation(opened) >= 5
    except MemoryError:
        raise
    except Exception as error:  # a damaged header makes decoders raise anything
        raise _undecodable(path, error) from error
    return (width, height) if turned else (height, width)


def check_picture(path: Path) -> tuple[int, int]:
    """`picture_size`, and a look at the file's end: a file that was cut is found without being decoded.

    JPEG must end with its mark and PNG must have the right checksums. What does not, and files of other kinds, are decoded.
    Of arrays some rows are looked at: their kind and their range are mostly those of all.

    Raises:
        DataError: The file is missing, empty, cut, or no picture; names it.
        MachineError: Pillow is not installed.
    """
    path = Path(path)
    size = picture_size(path)
    if path.suffix.lower() == ".npy":  # NumPy compared the array's size with the file's
        _rgb(_load_npy(path)[:: 1 + size[0] // 16], path)
        return size
    if _ends_as_it_should(path):
        return size
    height, width = read_picture(path).shape[:2]
    return height, width


def fit(picture: Picture, size: tuple[int, int]) -> tuple[Picture, tuple[float, float], tuple[int, int]]:
    """Fit a picture into a rectangle, its sides in proportion, in the middle, with grey beside it.

    Args:
        picture: `uint8 [height, width, 3]`.
        size: Height and width of the rectangle.

    Returns:
        The rectangle; the scales in x and y, which differ by a rounding to whole pixels; left and top of the picture in it.
    """
    height, width = picture.shape[:2]
    scale = min(size[0] / height, size[1] / width)
    inner_height, inner_width = max(1, round(height * scale)), max(1, round(width * scale))
    left, top = (size[1] - inner_width) // 2, (size[0] - inner_height) // 2
    fitted: Picture = np.full((*size, 3), PADDING, dtype=np.uint8)
    inside = fitted[top : top + inner_height, left : left + inner_width]
    if (inner_height, inner_width) == (height, width):
        inside[:] = picture
    else:
        cv2 = opencv()
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        inside[:] = cv2.resize(picture, (inner_width, inner_height), interpolation=how)
    return fitted, (inner_width / width, inner_height / height), (left, top)


def letterbox(picture: Picture, size: int) -> tuple[Picture, float, tuple[int, int]]:
    """Fit a picture into a square, its sides in proportion, in the middle, with grey beside it.

    Args:
        picture: `uint8 [height, width, 3]`.
        size: The square's side in pixels.

    Returns:
        The square `uint8 [size, size, 3]` in memory of its own; the scale (square's pixels per picture's pixel); and left
        and top of the picture in it, in pixels. A point (x, y) comes to (x * scale + left, y * scale + top).

    Raises:
        MachineError: OpenCV is not installed.
    """
    square, _, place = fit(picture, (size, size))
    return square, size / max(picture.shape[:2]), place


def read_text(path: Path) -> str:
    """Read a text file: UTF-8, with or without a byte order mark, or UTF-16 and UTF-32 with one.

    Raises:
        DataError: The file is missing, or not in one of these encodings; names the file and the line.
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
            path, f"byte {data[error.start]:#04x} is no {encoding.upper()}: save the file as UTF-8", line=line
        ) from error
    if (at := text.find("\0")) >= 0:
        reason = "a zero byte stands in it, as in UTF-16 without its mark: save the file as UTF-8"
        raise BadFileError(path, reason, line=text.count("\n", 0, at) + 1)
    return text.removeprefix("\ufeff")


@lru_cache(maxsize=1)
def opencv() -> Any:
    """OpenCV, told to work in the calling thread: samples are prepared side by side already.

    Raises:
        MachineError: It is not installed.
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
        raise BadFileError(path, "the file is empty: get the picture again, or remove it")
    return data


def _by_pillow(data: bytes, path: Path) -> Picture:
    image = needed("PIL.Image")
    try:
        with image.open(io.BytesIO(data)) as opened:
            turned = _orientation(opened)
            pixels = _pixels(opened)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes decoders raise anything
        raise _undecodable(path, error) from error
    return _upright(_rgb(pixels, path), turned)


def _pixels(opened: Any) -> npt.NDArray[Any]:
    """What Pillow opened, with as many bits as it was stored in."""
    if opened.mode in {"I", "F"} or opened.mode.startswith("I;16"):
        grey = np.asarray(opened)
        if opened.mode == "I" and grey.size and grey.min() >= 0 and grey.max() <= 65535:
            return grey.astype(np.uint16)
        return grey.astype(np.uint16) if opened.mode.startswith("I;16") else grey
    has_alpha = opened.mode in {"LA", "La", "PA", "RGBA", "RGBa"} or "transparency" in opened.info
    return np.asarray(opened.convert("RGBA" if has_alpha else "RGB"))


def _load_npy(path: Path) -> npt.NDArray[Any]:
    """An array file, mapped: what is not looked at is not read."""
    if not path.is_file() or path.stat().st_size == 0:
        _read_bytes(path)  # says why
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # as of pictures: a damaged header makes NumPy raise anything
        raise _undecodable(path, error) from error
    _npy_shape(array.shape, path)
    return array


def _npy_shape(shape: tuple[int, ...], path: Path) -> tuple[int, int]:
    if len(shape) not in {2, 3} or (len(shape) == 3 and shape[2] not in {1, 3, 4}) or 0 in shape:
        hint = ""
        if len(shape) == 3 and shape[0] in {1, 3, 4}:
            hint = ": its channels come first, so save array.transpose(1, 2, 0)"
        wanted = "[height, width] or [height, width, 1, 3 or 4]"
        raise BadFileError(path, f"an array of shape {list(shape)} is no picture, which is {wanted}{hint}")
    return shape[0], shape[1]


def _ends_as_it_should(path: Path) -> bool:
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
    """Any kind of pixels as `uint8 [height, width, 3]`."""
    pixels = _eight_bits(np.asarray(array), path)  # a mapped array is of a class of its own
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
        low, high = float(array.min()), float(array.max())  # NaN where there is one
        if not (low >= -_SLACK and high <= 1 + _SLACK):
            raise BadFileError(path, f"its floats go from {low:g} to {high:g}, and a picture's go from 0 to 1")
        levels: npt.NDArray[np.floating[Any]] = np.rint(np.clip(array, 0, 1) * 255)
        return levels.astype(np.uint8)
    raise BadFileError(path, f"numbers of the kind {array.dtype} are no picture: save uint8, uint16, or floats of 0 to 1")


def _orientation(opened: Any) -> int:
    """How an opened picture lies, by EXIF: 1 to 8. Pillow turns a TIFF by itself."""
    if opened.format == "TIFF" or "exif" not in opened.info:
        return 1
    try:
        found = opened.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, TypeError, KeyError, OSError, struct.error):  # damaged EXIF around a sound picture
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _jpeg_orientation(data: bytes, path: Path) -> int:
    if b"Exif\0\0" not in data:
        return 1
    try:
        with needed("PIL.Image").open(io.BytesIO(data)) as opened:
            return _orientation(opened)
    except (OSError, SyntaxError, ValueError) as error:
        raise _undecodable(path, error) from error


def _upright(pixels: Picture, orientation: int) -> Picture:
    """Turn and mirror pixels as EXIF says (section 4.6.4)."""
    if orientation >= 5:  # 5 to 8 lie on their side
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _unreadable(path: Path, error: OSError) -> BadFileError:
    return BadFileError(path, f"it cannot be read ({error.strerror or error})")


def _undecodable(path: Path, error: Exception) -> BadFileError:
    what = str(error).replace("\n", " ").removesuffix(".")
    what = "" if not what or "cannot identify" in what else f" ({what})"  # Pillow knows no more, and names the file again
    return BadFileError(path, f"it is no picture that can be decoded, or a damaged one{what}: get it again, or remove it")
