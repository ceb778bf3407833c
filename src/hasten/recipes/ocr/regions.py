"""Read text regions of images: labels as ICDAR text files, SROIE's csv files, COCO-Text, COCO or ArT JSON.

| files | a row or an annotation |
|---|---|
| `NAME.txt`, `gt_NAME.txt` | the rows of the ICDAR years: see `rows`, which decides over all files what they are |
| `NAME.csv` | `x1,y1,...,x4,y4,transcript`; the transcript may contain commas |
| one `.json` | see `text_json` |

Illegible text (`###`, or `illegible` in COCO-Text) is kept as ignored: it is neither trained on nor counted.
Self-intersecting polygons are repaired once, here. Everything unusable becomes a finding with its file and line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError, MachineError
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.maps.validity import repair
from hasten.recipes.ocr.rows import RowError, RowFormat, decide
from hasten.recipes.ocr.text_json import read_text_json
from hasten.recipes.pictures import check_picture, list_pictures, read_text

_THREADS = 8
_MOST_CROSSED = 0.5
"""Fraction of self-crossing quads from which the order of all corners is doubted."""
_FEW = 2
"""Number of self-crossing quads that is accepted in any case."""

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


def read_regions(
    images: Path,
    labels: Path,
    findings: Findings,
    *,
    rows: str | None = None,
    encoding: str | None = None,
    told: Callable[[int, int], None] | None = None,
) -> tuple[Item, ...]:
    """Read the labels of all images of a folder.

    Args:
        images: Folder of the images.
        labels: Folder of the label files, or one JSON file; may be the same folder.
        findings: Receives problems: an image without labels, a corrupt file, a bad row.
        rows: Kind of the rows; see `rows`. None decides by all rows.
        encoding: Encoding of label files that are not UTF-8.
        told: Called with the number of images checked so far, and the number of all.

    Returns:
        The usable images, sorted by name, including those without text.

    Raises:
        DataError: A folder is missing, images share a name, the rows can be read in two ways, or the JSON is invalid.
        MachineError: A package of the extra `recipes` is missing.
    """
    image_paths = list_pictures(images)
    new = Findings()
    new.num_images = len(image_paths)
    files = _label_files(Path(labels))
    sizes = _sizes(image_paths, new, told)
    if isinstance(files, Path):
        read = _json_rows(image_paths, sizes, files, new, encoding)
        _report_missing(image_paths, read, new, f"{files.name} does not list this image")
    else:
        texts = _texts(image_paths, files, new, encoding)
        expected = decide([row for _, text in texts.values() for row in _lines(text) if row.strip()], Path(labels), rows)
        new.understood.append(expected.words)
        texts = _without_header(texts, expected, new)
        read = _text_rows(texts, expected, new)
        if absent := sorted(files.keys() - {image_path.stem for image_path in image_paths}):
            count = "a label file has" if len(absent) == 1 else f"{len(absent)} label files have"
            new.add(files[absent[0]], None, f"{count} no image of the same name in {images}", lost="nothing")
        _report_missing(image_paths, read, new, f"{labels} has no label file for it (looked for .txt, gt_*.txt and .csv)")
    usable = [image_path for image_path in image_paths if image_path in read and image_path in sizes]
    _check_order([row.corners for image_path in usable for row in read[image_path][1]], Path(labels))
    items = tuple(
        Item(image_path, sizes[image_path], _regions(image_path, sizes[image_path], read[image_path], new))
        for image_path in usable
    )
    findings.take(new)
    return items


def parse_rows(text: str, path: Path, findings: Findings, *, rows: RowFormat) -> list[Row]:
    """Read the rows of one label file.

    Args:
        text: Content of the file.
        path: The file, for the findings.
        findings: Receives each invalid row, with its line.
        rows: The meaning of a row.
    """
    read = []
    for line, row in enumerate(_lines(text), start=1):
        if not row.strip():
            continue
        try:
            numbers, ignored = rows.read(row, more_corners=path.suffix.lower() != ".csv")
        except RowError as error:
            findings.add(path, line, str(error), lost="label")
        else:
            read.append(Row(line, np.asarray(numbers, dtype=np.float32).reshape(-1, 2), ignored))
    return read


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


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
    if count := sum(path.suffix.lower() == ".mat" for path in labels.iterdir()):
        result = f"{count} .mat files, which must be converted to rows of x1,y1,x2,y2,...,text"
    inner = sorted(path.name for path in labels.iterdir() if path.is_dir() and not path.name.startswith("."))
    hint = f" It has subfolders ({', '.join(inner[:5])}): give one of them." if inner else ""
    raise DataError(f"{labels} has no labels: expected .txt or .csv files, or one .json file, but found {result}.{hint}")


def _texts(
    image_paths: list[Path], files: dict[str, Path], findings: Findings, encoding: str | None
) -> dict[Path, tuple[Path, str]]:
    """Return the label file of each usable image, and its content."""
    bad = {item.about for item in findings.items}
    texts = {}
    for image_path in image_paths:
        path = files.get(image_path.stem)
        if path is None or image_path in bad:
            continue
        try:
            texts[image_path] = (path, read_text(path, encoding))
        except BadFileError as error:
            findings.add_error(error, lost="picture", about=image_path)
    return texts


def _without_header(
    texts: dict[Path, tuple[Path, str]], expected: RowFormat, findings: Findings
) -> dict[Path, tuple[Path, str]]:
    """Blank the first line of each file if it is the same in most of them, begins with no number, and rows follow it."""
    firsts = [text.partition("\n") for _, text in texts.values()]
    headers = Counter(first.rstrip("\r") for first, _, rest in firsts if rest.strip())
    (header, count), *_ = headers.most_common(1) or [("", 0)]
    if count < 2 or count <= len(texts) / 2 or not header.strip() or expected.num_leading(header):
        return texts
    findings.understood.append(f"The first line of {count} files is a header: {header.strip()[:60]!r}.")
    return {image: (path, text.removeprefix(header)) for image, (path, text) in texts.items()}


def _text_rows(
    texts: dict[Path, tuple[Path, str]], expected: RowFormat, findings: Findings
) -> dict[Path, tuple[Path, list[Row]]]:
    rows = {}
    for image_path, (path, text) in texts.items():
        before = len(findings)
        read = parse_rows(text, path, findings, rows=expected)
        if len(findings) > before and not read:  # all rows are bad: the image does not count as empty
            findings.add(path, None, "none of its rows can be read", lost="picture", about=image_path)
        else:
            rows[image_path] = (path, read)
    return rows


def _json_rows(
    image_paths: list[Path], sizes: dict[Path, tuple[int, int]], path: Path, findings: Findings, encoding: str | None
) -> dict[Path, tuple[Path, list[Row]]]:
    """Return the texts that a JSON file lists for each image."""
    texts = read_text_json(path, image_paths, findings, encoding)
    rows = {}
    for image_path, (entry, found) in texts.items():
        reason = None if entry is None or image_path not in sizes else entry.other_size(sizes[image_path])
        if reason is not None:
            findings.add(path, None, reason, lost="picture", about=image_path)
        else:
            rows[image_path] = (path, [Row(None, corners, ignored) for corners, ignored in found])
    return rows


def _check_order(quads: list[Corners], labels: Path) -> None:
    """Refuse labels of which most quads cross themselves: their corners do not go around the text."""
    corners = np.asarray([quad for quad in quads if len(quad) == 4], dtype=np.float64).reshape(-1, 4, 2)
    num_crossed = int((_crossed(corners, (0, 1, 2, 3)) | _crossed(corners, (1, 2, 3, 0))).sum())
    if num_crossed > max(_MOST_CROSSED * len(corners), _FEW):
        raise DataError(
            f"{labels}: {num_crossed} of {len(corners)} outlines cross themselves: corners must go around the text, such as "
            f"upper left, upper right, lower right, lower left."
        )


def _crossed(quads: npt.NDArray[np.float64], order: tuple[int, int, int, int]) -> npt.NDArray[np.bool_]:
    """Return which quads have two opposite sides that cross: a to b, and c to d."""
    a, b, c, d = (quads[:, corner] for corner in order)

    def side(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64], r: npt.NDArray[np.float64]) -> Any:
        return (q[:, 0] - p[:, 0]) * (r[:, 1] - p[:, 1]) - (q[:, 1] - p[:, 1]) * (r[:, 0] - p[:, 0])

    crossed: npt.NDArray[np.bool_] = (side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)
    return crossed


def _report_missing(image_paths: list[Path], rows: dict[Path, Any], findings: Findings, reason: str) -> None:
    known = {item.about for item in findings.items if item.lost == "picture"}
    for image_path in image_paths:
        if image_path not in rows and image_path not in known:
            findings.add(image_path, None, reason, lost="picture")


def _sizes(
    image_paths: list[Path], findings: Findings, told: Callable[[int, int], None] | None
) -> dict[Path, tuple[int, int]]:
    """Return the height and width of each valid image, from headers and the last bytes, in threads."""

    def look(path: Path) -> tuple[int, int] | str:
        try:
            return check_picture(path)
        except BadFileError as error:
            return error.reason
        except MachineError:
            raise
        except Exception as error:  # noqa: BLE001 - one file never ends the reading
            return f"it cannot be read ({type(error).__name__}: {str(error)[:200]})"

    sizes = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for done, (path, result) in enumerate(zip(image_paths, pool.map(look, image_paths), strict=True), start=1):
            if isinstance(result, str):
                findings.add(path, None, result, lost="picture")
            else:
                sizes[path] = result
            if told is not None:
                told(done, len(image_paths))
    return sizes


def _regions(image_path: Path, size: tuple[int, int], read: tuple[Path, list[Row]], findings: Findings) -> PolygonArray:
    path, rows = read
    polygons: list[Corners] = []
    ignored: list[bool] = []
    seen: set[bytes] = set()
    for row in rows:
        if (reason := _why_unusable(row.corners, size)) is not None:
            findings.add(path, row.line, reason, lost="label", about=image_path)
            continue
        if (identity := row.corners.tobytes()) in seen:
            findings.add(path, row.line, "it repeats an earlier label, and counts once", lost="nothing", about=image_path)
            continue
        seen.add(identity)
        parts = list(_parts(row.corners))
        if not parts:
            findings.add(path, row.line, "its polygon has no area", lost="label", about=image_path)
        elif len(parts) > 1:
            reason = f"its outline crosses itself: the {len(parts)} parts that it encloses count"
            findings.add(path, row.line, reason, lost="nothing", about=image_path)
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
