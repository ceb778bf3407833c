"""Read text regions of images: labels as ICDAR text files, SROIE's csv files, or COCO-Text JSON.

| files | a row or an annotation |
|---|---|
| `NAME.txt`, `gt_NAME.txt` | `x1,y1,...,xn,yn,transcript`; n is 4 in most files, and may differ from row to row |
| `NAME.csv` | `x1,y1,...,x4,y4,transcript`; the transcript may contain commas |
| one `.json` | COCO-Text (`imgs`, `anns`) or COCO (`images`, `annotations`): a mask, a polygon or a box |

Illegible text (`###`, or `illegible` in COCO-Text) is kept as ignored: it is neither trained on nor counted.
Self-intersecting polygons are repaired once, here. Everything unusable becomes a finding with its file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.ocr.coco_text import LARGEST, read_coco_text
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.maps.validity import repair
from hasten.recipes.pictures import check_picture, list_pictures, read_text

ILLEGIBLE = frozenset({"###", "*", "#"})
"""Transcripts that mark illegible text: those of ICDAR, ArT and Total-Text."""

_THREADS = 8
_QUAD = 8
"""Coordinates of a quadrilateral."""
Rows: TypeAlias = Literal["quads", "mixed", "polygons"]
"""Content of a file: eight coordinates in each row; mostly eight, and polygons of six or more corners; or any polygons."""

Corners = npt.NDArray[np.float32]
"""The corners of one polygon in pixels, x and y: `[n, 2]`."""


@dataclass(frozen=True)
class Item:
    """One image and its text.

    Attributes:
        path: The image file.
        size: Its height and width in pixels, upright.
        regions: The text regions, in pixels of the image.
    """

    path: Path
    size: tuple[int, int]
    regions: PolygonArray


@dataclass(frozen=True)
class Row:
    """One label as read from its file.

    Attributes:
        line: Line in its file, counted from 1; None in JSON.
        corners: `float32 [n, 2]`, x and y in pixels.
        ignored: Whether the text is illegible.
    """

    line: int | None
    corners: Corners
    ignored: bool


def read_regions(images: Path, labels: Path, findings: Findings) -> tuple[Item, ...]:
    """Read the labels of all images of a folder.

    Args:
        images: Folder of the images.
        labels: Folder of the label files, or one COCO-Text JSON file; may be the same folder.
        findings: Receives problems: an image without labels, a corrupt file, a bad row.

    Returns:
        The usable images, sorted by name, including those without text.

    Raises:
        DataError: A folder is missing, images share a name, or the JSON file cannot be read.
        MachineError: A package of the extra `recipes` is missing.
    """
    image_paths = list_pictures(images)
    sizes = _sizes(image_paths, findings)
    files = _label_files(Path(labels))
    rows: dict[Path, tuple[Path, list[Row]]] = {}
    if isinstance(files, Path):
        texts = read_coco_text(files, findings)
        for image_path in image_paths:
            if image_path.name in texts:
                rows[image_path] = (files, [Row(None, corners, ignored) for corners, ignored in texts[image_path.name]])
        _report_missing(image_paths, rows, findings, f"{files.name} does not list this image")
    else:
        rows = _text_rows(image_paths, files, findings)
        for stem in sorted(files.keys() - {image_path.stem for image_path in image_paths}):
            findings.add(files[stem], None, f"{images} has no image with this name", lost="nothing")
        _report_missing(
            image_paths, rows, findings, f"{labels} has no label file for it (looked for .txt, gt_*.txt and .csv)"
        )
    usable = [image_path for image_path in image_paths if image_path in rows and image_path in sizes]
    return tuple(
        Item(image_path, sizes[image_path], _regions(image_path, sizes[image_path], rows[image_path], findings))
        for image_path in usable
    )


def parse_rows(text: str, path: Path, findings: Findings, *, rows: Rows) -> list[Row]:
    """Read the rows of one label file.

    Args:
        text: Content of the file.
        path: The file, for the findings.
        findings: Receives each invalid row, with its line.
        rows: Kind of rows to expect. If quads are usual, numbers after the eighth belong to the transcript, unless they
            continue the outline of the text.
    """
    read = []
    for line, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        fields = row.split(",")
        numbers = _leading_numbers(fields)
        wanted = _num_coordinates(fields, numbers, rows)
        if wanted < 6 or len(numbers) < wanted:
            at_least = 6 if rows == "polygons" else _QUAD
            reason = (
                f"a row needs {at_least} numbers and a transcript, but this starts with {len(numbers)}: {row.strip()[:60]!r}"
            )
            findings.add(path, line, reason, lost="label")
            continue
        transcript = ",".join(fields[wanted:]).strip().strip('"')
        corners = np.asarray(numbers[:wanted], dtype=np.float32).reshape(-1, 2)
        read.append(Row(line, corners, transcript in ILLEGIBLE))
    return read


def _leading_numbers(fields: list[str]) -> list[float]:
    """Return the numbers at the start of a row; `nan`, `inf` and `1_000` are not accepted."""
    numbers: list[float] = []
    for field in fields:
        try:
            number = float(field)
        except ValueError:
            return numbers
        if not abs(number) <= LARGEST or "_" in field:
            return numbers
        numbers.append(number)
    return numbers


def _num_coordinates(fields: list[str], numbers: list[float], rows: Rows) -> int:
    """Return how many fields of a row are coordinates. The rest is the transcript, which may contain numbers too."""
    if rows == "quads":
        return _QUAD
    all_numbers = len(numbers) == len(fields) and len(numbers) % 2 == 1  # the last one is the transcript
    polygon = len(numbers) - 1 if all_numbers else len(numbers) - len(numbers) % 2
    if rows == "polygons":
        return polygon
    return polygon if polygon >= _QUAD + 4 and _continues_outline(numbers[:polygon]) else _QUAD


def _continues_outline(numbers: list[float]) -> bool:
    """Return whether the numbers after the first eight are corners too: none is far from the first four."""
    corners = np.asarray(numbers, dtype=np.float64).reshape(-1, 2)
    low, high = corners[:4].min(axis=0), corners[:4].max(axis=0)
    far = 2 * float((high - low).max())
    return bool((corners >= low - far).all() and (corners <= high + far).all())


def _label_files(labels: Path) -> Path | dict[str, Path]:
    """Return the single JSON file, or the label file of each stem."""
    if labels.is_file():
        if labels.suffix.lower() == ".json":
            return labels
        raise DataError(f"{labels} is not a .json file: give a COCO-Text file, or the folder of the .txt or .csv files.")
    if not labels.is_dir():
        raise DataError(f"{labels} does not exist: give the folder of the label files, or a COCO-Text JSON file.")
    files: dict[str, Path] = {}
    for path in sorted(labels.iterdir()):
        if path.suffix.lower() not in {".txt", ".csv"} or not path.is_file():
            continue
        stem = path.stem.removeprefix("gt_")
        if stem in files:
            raise DataError(f"{labels} has two label files for {stem}: {files[stem].name} and {path.name}. Remove one.")
        files[stem] = path
    if files:
        return files
    whole = sorted(path for path in labels.iterdir() if path.suffix.lower() == ".json")
    if len(whole) == 1:
        return whole[0]
    result = f"{len(whole)} .json files" if whole else "none of these"
    raise DataError(f"{labels} has no labels: expected .txt or .csv files, or one .json file, but found {result}.")


def _text_rows(image_paths: list[Path], files: dict[str, Path], findings: Findings) -> dict[Path, tuple[Path, list[Row]]]:
    texts: dict[Path, tuple[Path, str]] = {}
    for image_path in image_paths:
        path = files.get(image_path.stem)
        if path is None:
            continue
        try:
            texts[image_path] = (path, read_text(path))
        except BadFileError as error:
            findings.add_error(error, lost="picture", about=image_path)
            texts[image_path] = (path, "")
    bad = {item.about for item in findings.items if item.lost == "picture"}
    quads = _mostly_quads(text for path, text in texts.values() if path.suffix.lower() == ".txt")
    rows = {}
    for image_path, (path, text) in texts.items():
        if image_path in bad:
            continue
        expected: Rows = "quads" if path.suffix.lower() == ".csv" else "mixed" if quads else "polygons"
        before = len(findings)
        rows[image_path] = (path, parse_rows(text, path, findings, rows=expected))
        if len(findings) > before and not rows[image_path][1]:  # all rows are bad: the image does not count as empty
            findings.add(path, None, "none of its rows could be read", lost="picture", about=image_path)
            del rows[image_path]
    return rows


def _mostly_quads(texts: Iterable[str]) -> bool:
    """Return whether at least half of the rows start with eight or nine numbers."""
    counts = [len(_leading_numbers(row.split(","))) for text in texts for row in text.split("\n") if row.strip()]
    return 2 * sum(_QUAD <= count <= _QUAD + 1 for count in counts) >= len(counts)


def _report_missing(image_paths: list[Path], rows: dict[Path, Any], findings: Findings, reason: str) -> None:
    known = {item.about for item in findings.items if item.lost == "picture"}
    for image_path in image_paths:
        if image_path not in rows and image_path not in known:
            findings.add(image_path, None, reason, lost="picture")


def _sizes(image_paths: list[Path], findings: Findings) -> dict[Path, tuple[int, int]]:
    """Return the height and width of each valid image, from headers and the last bytes, in threads."""

    def look(path: Path) -> tuple[int, int] | BadFileError:
        try:
            return check_picture(path)
        except BadFileError as error:
            return error

    sizes = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for path, result in zip(image_paths, pool.map(look, image_paths), strict=True):
            if isinstance(result, BadFileError):
                findings.add_error(result, lost="picture", about=path)
            else:
                sizes[path] = result
    return sizes


def _regions(image_path: Path, size: tuple[int, int], read: tuple[Path, list[Row]], findings: Findings) -> PolygonArray:
    path, rows = read
    polygons: list[Corners] = []
    ignored: list[bool] = []
    for row in rows:
        if (reason := _why_unusable(row.corners, size)) is not None:
            findings.add(path, row.line, reason, lost="label", about=image_path)
            continue
        parts = list(_parts(row.corners))
        if not parts:
            findings.add(path, row.line, "its polygon has no area", lost="label", about=image_path)
        polygons += parts
        ignored += [row.ignored] * len(parts)
    return PolygonArray.from_list(polygons, ignored)


def _parts(corners: Corners) -> Iterator[Corners]:
    for part in repair(corners):
        yield np.asarray(part, dtype=np.float32)


def _why_unusable(corners: Corners, size: tuple[int, int]) -> str | None:
    height, width = size
    if not np.isfinite(corners).all():
        return "its corners are not finite numbers"
    (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        return f"it is outside the image, which is {width} pixels wide and {height} high"
    return None
