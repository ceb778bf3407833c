"""Generate pages of text for users without their own images: printed lines on paper, straight, rotated or curved.

Each page is a pure function of (seed, index, size). The paper has a tint, stains and fibres. Lines of words and prices are
placed on it without touching, some along a curve (their polygons have twelve corners). The page is then seen in perspective,
in uneven light, slightly out of focus, with noise. A few lines are smeared until illegible and labelled `###`. Fonts are
those that come with matplotlib, or Pillow's own if it is not installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.recipes.drawn import drawn_once
from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.pictures import Picture, opencv

Floats = npt.NDArray[np.float32]

WORDS = """
total cash change tax date time table invoice receipt number amount paid card street road market coffee bread milk tea rice
paper water fresh store open daily welcome thank you please come again discount item price each net gross rounding office
station garden river house north south east west first second third morning evening letter page chapter title
""".split()  # noqa: SIM905  easier to read than a list
"""Words of the generated lines, in addition to numbers."""

_FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif",
    "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol",
)  # fmt: skip
_CURVE_POINTS = 6
"""Number of corners along the upper and the lower edge of a curved line."""
_DRAWING = 2
"""Version of the generator. Increase it whenever pages change, so that cached folders are not reused."""


@dataclass(frozen=True)
class _Line:
    """The ink of one line of text, before it is placed on the page.

    Attributes:
        ink: Coverage of each pixel, 0 to 1, `[height, width]`.
        outline: The line's polygon in pixels of the ink, `[n, 2]`.
    """

    ink: Floats
    outline: Floats


def draw(seed: int, index: int, size: int | tuple[int, int]) -> tuple[Picture, PolygonArray]:
    """Generate one page.

    Args:
        seed: Seed of the set.
        index: Index of the page.
        size: Side, or height and width, in pixels; at least 64.

    Returns:
        The page `uint8 [height, width, 3]`, and its lines of text.

    Raises:
        MachineError: Pillow or OpenCV is not installed.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 64:
        raise DataError(f"a page of text needs at least 64 pixels on each side, not {height} x {width}.")
    rng = np.random.default_rng((seed, index))
    page = _paper(rng, height, width)
    dark = float(page.mean()) > 110
    polygons: list[Floats] = []
    ignored: list[bool] = []
    taken = np.zeros((height, width), dtype=bool)
    for _ in range(int(rng.integers(6, 16))):
        line = _line(rng, min(height, width))
        place = _free_place(rng, taken, line.ink.shape)
        if place is None:
            continue
        top, left = place
        smeared = bool(rng.random() < 0.06)
        ink = opencv().GaussianBlur(line.ink, (0, 0), line.ink.shape[0] / 5) if smeared else line.ink
        colour = rng.uniform(0, 70, 3) if dark else rng.uniform(190, 255, 3)
        part = page[top : top + ink.shape[0], left : left + ink.shape[1]]
        part += (ink * rng.uniform(0.75, 1.0))[:, :, None] * (colour.astype(np.float32) - part)
        taken[top : top + ink.shape[0], left : left + ink.shape[1]] = True
        polygons.append(line.outline + np.asarray((left, top), dtype=np.float32))
        ignored.append(smeared)
    page, polygons = _seen(rng, page, polygons)
    return np.clip(np.rint(page), 0, 255).astype(np.uint8), PolygonArray.from_list(polygons, ignored)


def write(
    folder: Path,
    count: int,
    seed: int,
    *,
    size: int | tuple[int, int] = 640,
    told: Callable[[], None] | None = None,
) -> None:
    """Write pages as JPEG files with ICDAR labels: FOLDER/images and FOLDER/labels.

    Args:
        folder: A new or empty folder.
        count: Number of pages.
        seed: Seed of the set; the same seed gives the same pages.
        size: Side, or height and width, in pixels.
        told: Called after each page.

    Raises:
        MachineError: Pillow or OpenCV is not installed.
    """
    pil = needed("PIL.Image")
    images, labels = Path(folder) / "images", Path(folder) / "labels"
    for inner in (images, labels):
        inner.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        page, regions = draw(seed, index, size)
        name = f"page-{index:05d}"
        pil.fromarray(page).save(images / f"{name}.jpg", quality=88)
        (labels / f"{name}.txt").write_text("".join(_rows(regions)), encoding="utf-8")
        if told is not None:
            told()


def drawn_folder(count: int, seed: int, size: tuple[int, int]) -> Path:
    """Return a folder of generated pages, generated once on this machine and shared by every process that needs the same.

    Raises:
        MachineError: The folder cannot be written.
    """
    said = hashlib.sha256(repr((_DRAWING, count, seed, size, [path.name for path in _fonts()])).encode()).hexdigest()[:16]
    return drawn_once(f"pages-{said}", lambda folder: write(folder, count, seed, size=size))


def _rows(regions: PolygonArray) -> Iterator[str]:
    """Yield the rows of an ICDAR file: eight numbers if all lines are quads, otherwise two for each corner."""
    for number in range(len(regions)):
        corners = ",".join(f"{value:.1f}" for value in regions.polygon(number).reshape(-1).tolist())
        yield f"{corners},{'###' if regions.ignored[number] else 'text'}\n"


def _paper(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Return an empty page with a tint, stains, fibres, and occasional rules and boxes: `float32 [height, width, 3]`."""
    cv2 = opencv()
    base = rng.uniform(185, 250) if rng.random() < 0.85 else rng.uniform(20, 80)
    tint = rng.normal(0, 6, 3) + base
    stains = cv2.resize(rng.normal(0, 7, (6, 6)).astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    fibres = cv2.GaussianBlur(rng.normal(0, 5, (height, width)).astype(np.float32), (0, 0), 0.7)
    page: Floats = np.ascontiguousarray((stains + fibres)[:, :, None] + tint.astype(np.float32), dtype=np.float32)
    for _ in range(int(rng.integers(0, 4))):
        shade = float(base + rng.uniform(-60, 30))
        y, x = int(rng.integers(0, height)), int(rng.integers(0, width))
        if rng.random() < 0.6:
            cv2.line(page, (0, y), (width, y + int(rng.integers(-4, 5))), (shade, shade, shade), int(rng.integers(1, 3)))
        else:
            far = (x + int(rng.integers(10, width // 2)), y + int(rng.integers(10, height // 2)))
            cv2.rectangle(page, (x, y), far, (shade, shade, shade), int(rng.integers(1, 3)))
    return page


def _line(rng: np.random.Generator, side: int) -> _Line:
    """Return a line of words: straight, rotated by a few degrees, or curved."""
    pixels = max(9, int(side * rng.uniform(0.035, 0.085)))
    ink = _printed(_words(rng), int(rng.integers(0, 1 << 30)), pixels)
    height, width = ink.shape
    kind = rng.random()
    if kind < 0.2 and width > 4 * height:
        return _bent(rng, ink)
    if kind < 0.6:
        return _Line(ink, np.asarray([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)], dtype=np.float32))
    return _turned(ink, float(rng.uniform(-12, 12)))


def _turned(ink: Floats, degrees: float) -> _Line:
    cv2 = opencv()
    height, width = ink.shape
    angle = np.deg2rad(degrees)
    outer_width = int(np.ceil(width * np.cos(angle) + height * abs(np.sin(angle)))) + 2
    outer_height = int(np.ceil(height * np.cos(angle) + width * abs(np.sin(angle)))) + 2
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    matrix[:, 2] += ((outer_width - width) / 2, (outer_height - height) / 2)
    corners = np.asarray([(0, 0, 1), (width - 1, 0, 1), (width - 1, height - 1, 1), (0, height - 1, 1)], dtype=np.float64)
    moved = cv2.warpAffine(ink, matrix, (outer_width, outer_height), flags=cv2.INTER_LINEAR)
    return _Line(moved, (corners @ matrix.T).astype(np.float32))


def _bent(rng: np.random.Generator, ink: Floats) -> _Line:
    """Shift each column up or down along half a wave."""
    cv2 = opencv()
    height, width = ink.shape
    depth = float(rng.uniform(0.4, 1.0)) * height * (1 if rng.random() < 0.5 else -1)
    columns = np.arange(width, dtype=np.float32)
    down = (depth * np.sin(np.pi * columns / (width - 1)) + max(0.0, -depth)).astype(np.float32)
    outer = height + int(np.ceil(abs(depth)))
    rows = np.arange(outer, dtype=np.float32)[:, None] - down[None]
    bent = cv2.remap(ink, np.broadcast_to(columns, rows.shape).copy(), rows, cv2.INTER_LINEAR)
    positions = np.linspace(0, width - 1, _CURVE_POINTS)
    upper = np.interp(positions, columns, down)
    top, bottom = np.stack([positions, upper], axis=1), np.stack([positions, upper + height - 1], axis=1)
    return _Line(bent, np.concatenate([top, bottom[::-1]]).astype(np.float32))


def _words(rng: np.random.Generator) -> str:
    """Return one to four words or numbers."""
    parts = []
    for _ in range(int(rng.integers(1, 5))):
        if rng.random() < 0.3:
            parts.append(f"{rng.uniform(0, 500):.2f}" if rng.random() < 0.6 else str(int(rng.integers(1, 100_000))))
            continue
        word = WORDS[int(rng.integers(len(WORDS)))]
        parts.append((word, word.capitalize(), word.upper())[int(rng.integers(3))])
    return " ".join(parts)


def _printed(text: str, face: int, pixels: int) -> Floats:
    """Return text in black as the coverage of each pixel, cropped to the text, with a margin of one pixel."""
    font = _font(face % max(1, len(_fonts())), pixels)
    left, top, right, bottom = font.getbbox(text)
    canvas = needed("PIL.Image").new("L", (max(1, int(right - left)) + 2, max(1, int(bottom - top)) + 2))
    needed("PIL.ImageDraw").Draw(canvas).text((1 - left, 1 - top), text, fill=255, font=font)
    covered: Floats = np.asarray(canvas, dtype=np.float32)
    return covered / np.float32(255)


def _free_place(rng: np.random.Generator, taken: npt.NDArray[np.bool_], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return top and left of a free area of this shape plus a margin; None if a few attempts find none."""
    height, width = taken.shape
    margin = 4
    if shape[0] + 2 * margin >= height or shape[1] + 2 * margin >= width:
        return None
    for _ in range(20):
        top = int(rng.integers(margin, height - shape[0] - margin))
        left = int(rng.integers(margin, width - shape[1] - margin))
        if not taken[top - margin : top + shape[0] + margin, left - margin : left + shape[1] + margin].any():
            return top, left
    return None


def _seen(rng: np.random.Generator, page: Floats, polygons: list[Floats]) -> tuple[Floats, list[Floats]]:
    """Return the page in perspective, in uneven light, out of focus, with noise; and the polygons of its lines."""
    cv2 = opencv()
    height, width = page.shape[:2]
    flat = np.asarray([(0, 0), (width, 0), (width, height), (0, height)], dtype=np.float32)
    away = flat + rng.uniform(-0.03, 0.03, (4, 2)).astype(np.float32) * np.asarray((width, height), dtype=np.float32)
    matrix = cv2.getPerspectiveTransform(flat, away.astype(np.float32))
    photo = cv2.warpPerspective(page, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    moved = [cv2.perspectiveTransform(polygon[None], matrix)[0].astype(np.float32) for polygon in polygons]
    light: Floats = np.linspace(rng.uniform(0.8, 1.05), rng.uniform(0.8, 1.05), width, dtype=np.float32)[None, :]
    light = light * np.linspace(rng.uniform(0.85, 1.05), rng.uniform(0.85, 1.05), height, dtype=np.float32)[:, None]
    photo = photo * light[:, :, None]
    if rng.random() < 0.6:
        photo = cv2.GaussianBlur(photo, (0, 0), float(rng.uniform(0.3, 0.9)))
    noise = rng.normal(0, float(rng.uniform(0.5, 5)), (height, width, 1)).astype(np.float32)
    return np.ascontiguousarray(photo + noise, dtype=np.float32), moved


@lru_cache(maxsize=1)
def _fonts() -> tuple[Path, ...]:
    """Return matplotlib's font files; empty if it is not installed."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    return tuple(path for name in _FACES if (path := folder / f"{name}.ttf").is_file())


@lru_cache(maxsize=512)
def _font(face: int, pixels: int) -> Any:
    fonts = _fonts()
    kind = needed("PIL.ImageFont")
    return kind.truetype(str(fonts[face]), pixels) if fonts else kind.load_default(pixels)
