"""Read text regions from one JSON file: COCO-Text (Veit et al. 2016, versions 1 and 2), COCO with polygons, or ArT.

| form | content |
|---|---|
| COCO-Text | `imgs` and `anns`: objects keyed by id |
| COCO | `images` and `annotations`: lists |
| ArT, LSVT | the name of each image without its ending, with a list of `points`, `transcription` and `illegibility` |

The corners of an annotation are taken from `mask`, else `polygon`, else `segmentation`, else the box `bbox` (left, top,
width, height). Each part of a `segmentation` of several parts is a text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.json_file import read_json
from hasten.recipes.listed_images import Listed, is_crowd, key_of, listed, matched
from hasten.recipes.ocr.rows import ILLEGIBLE, LARGEST

Text: TypeAlias = "tuple[npt.NDArray[np.float32], bool]"
"""The corners `[n, 2]` of a text, and whether it is illegible."""
Texts: TypeAlias = "dict[Path, tuple[Listed | None, list[Text]]]"
"""The texts of each image, and its entry in the file, if there is one."""
_Entries: TypeAlias = "list[tuple[str, Any]]"


def read_text_json(path: Path, images: list[Path], findings: Findings, encoding: str | None = None) -> Texts:
    """Return the texts of each image that the file lists.

    Args:
        path: The JSON file.
        images: The image files.
        findings: Receives each annotation that cannot be used, and each image that is listed twice.
        encoding: Encoding of a file that is not UTF-8.

    Raises:
        BadFileError: The file is not JSON, or has none of the forms.
    """
    content = read_json(path, encoding)
    if isinstance(content, list) and content and isinstance(content[0], dict) and "image_id" in content[0]:
        raise BadFileError(path, "it holds the results of a detector: give the file with `images` and `annotations`")
    if isinstance(content, dict):
        for name, own, form in (("imgs", "anns", "COCO-Text"), ("images", "annotations", "COCO")):
            if name in content and own in content:
                findings.understood.append(f"Labels are {form} JSON: masks, polygons or boxes in pixels.")
                return _from_lists(_numbered(content, name, path), _numbered(content, own, path), path, images, findings)
        if content and all(isinstance(value, list) for value in content.values()) and _has_points(content):
            findings.understood.append("Labels are ArT JSON: points in pixels.")
            return _from_art(content, path, images, findings)
    raise BadFileError(path, "it has neither `imgs` and `anns` (COCO-Text) nor `images` and `annotations` (COCO)")


def _from_lists(
    entries_of_images: _Entries, entries_of_texts: _Entries, path: Path, images: list[Path], findings: Findings
) -> Texts:
    entries = []
    for number, values in entries_of_images:
        own = key_of(values.get("id")) if isinstance(values, dict) else None
        if (entry := listed(values, own or number)) is None:
            findings.add(path, None, f"image {number} has no file_name", lost="label")
        else:
            entries.append(entry)
    match = matched(entries, images)
    for image in sorted(match.twice):
        reason = f"{image.name} or its id is listed twice: remove one entry"
        findings.add(path, None, reason, lost="picture", about=image)
    if match.absent:
        reason = f"{len(match.absent)} images are listed but missing, such as {match.absent[0]}"
        findings.add(path, None, reason, lost="nothing")
    texts: dict[str, list[Text]] = {entry.id: [] for entry in entries}
    about = {entry.id: image for image, entry in match.found.items()}
    for number, annotation in entries_of_texts:
        image_id = key_of(annotation.get("image_id")) if isinstance(annotation, dict) else None
        if not isinstance(annotation, dict):
            findings.add(path, None, f"annotation {number}: it is not an object", lost="label")
        elif image_id is None or image_id not in texts:
            reason = f"annotation {number}: its image {annotation.get('image_id')!r} is not in the file"
            findings.add(path, None, reason, lost="label")
        elif image_id in about:
            found = _texts_of(annotation)
            texts[image_id] += found
            if not found:
                reason = f"annotation {number}: it has no mask, polygon, segmentation or bbox with at least three corners"
                findings.add(path, None, reason, lost="label", about=about[image_id])
    return {image: (entry, texts[entry.id]) for image, entry in match.found.items()}


def _from_art(content: dict[str, list[Any]], path: Path, images: list[Path], findings: Findings) -> Texts:
    stems = {image.stem: image for image in images} | {image.name: image for image in images}
    texts: Texts = {}
    for name, annotated in content.items():
        image = stems.get(name)
        if image is None:
            findings.add(path, None, f"{name} is listed, but has no image", lost="nothing")
            continue
        found: list[Text] = []
        for index, annotation in enumerate(annotated):
            points = annotation.get("points") if isinstance(annotation, dict) else None
            numbers = [number for point in points for number in _pair(point)] if isinstance(points, list) else []
            if len(numbers) < 6 or not _all_numbers(numbers):
                reason = f"text {index} of {name} has no `points` with at least three corners"
                findings.add(path, None, reason, lost="label", about=image)
                continue
            ignored = bool(annotation.get("illegibility")) or str(annotation.get("transcription")) in ILLEGIBLE
            found.append((np.asarray(numbers, dtype=np.float32).reshape(-1, 2), ignored))
        texts[image] = (None, found)
    return texts


def _pair(point: Any) -> list[Any]:
    """Return x and y of a point; what is none becomes a number that is none."""
    return point if isinstance(point, list) and len(point) == 2 else [None]


def _has_points(content: dict[str, list[Any]]) -> bool:
    return any(isinstance(one, dict) and "points" in one for value in content.values() for one in value)


def _numbered(content: dict[str, Any], name: str, path: Path) -> _Entries:
    """Return the entries under a name with their ids; ids may be there twice."""
    entries = content[name]
    if isinstance(entries, dict):
        return [(str(number), entry) for number, entry in entries.items()]
    if isinstance(entries, list):
        own = [key_of(entry.get("id")) if isinstance(entry, dict) else None for entry in entries]
        return [(key or f"at position {place}", entry) for place, (key, entry) in enumerate(zip(own, entries, strict=True))]
    raise BadFileError(path, f"its `{name}` is neither an object nor a list")


def _texts_of(annotation: dict[str, Any]) -> list[Text]:
    """Return the texts of an annotation: one for each part of its outline."""
    ignored = annotation.get("legibility") == "illegible" or is_crowd(annotation)
    ignored = ignored or str(annotation.get("utf8_string")) in ILLEGIBLE
    return [(np.asarray(part, dtype=np.float32).reshape(-1, 2), ignored) for part in _outlines(annotation)]


def _outlines(annotation: dict[str, Any]) -> list[list[float]]:
    for name in ("mask", "polygon", "segmentation"):
        value = annotation.get(name)
        parts: list[Any] = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
        if all(isinstance(part, list) and len(part) >= 6 and len(part) % 2 == 0 and _all_numbers(part) for part in parts):
            return parts
    box = annotation.get("bbox")
    if isinstance(box, list) and len(box) == 4 and _all_numbers(box) and box[2] > 0 and box[3] > 0:
        left, top, width, height = box
        right, bottom = left + width, top + height
        return [[left, top, right, top, right, bottom, left, bottom]]
    return []


def _all_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST for value in values)
