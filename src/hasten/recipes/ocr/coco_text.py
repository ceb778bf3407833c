"""Read COCO-Text JSON files (Veit et al. 2016, versions 1 and 2) and COCO files with polygons.

COCO-Text stores `imgs` and `anns` as objects keyed by id; COCO stores `images` and `annotations` as lists. The corners of an
annotation are taken from `mask`, else `polygon`, else `segmentation`, else the box `bbox` (left, top, width, height).
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import read_text

LARGEST = 1e7
"""Largest valid coordinate in pixels."""

Labelled = tuple[npt.NDArray[np.float32], bool]
"""The corners `[n, 2]` of a text, and whether it is illegible."""


def read_coco_text(path: Path, findings: Findings) -> dict[str, list[Labelled]]:
    """Return the texts of each image, by the image's file name (without its folder).

    Args:
        path: The JSON file.
        findings: Receives each annotation that cannot be used.

    Raises:
        BadFileError: The file is not JSON, or has neither `imgs` and `anns` nor `images` and `annotations`.
    """
    try:
        content: Any = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadFileError(path, f"it is not valid JSON ({error.msg})", line=error.lineno) from error
    images, annotations = _both(content, path)
    names: dict[str, str] = {}
    texts: dict[str, list[Labelled]] = {}
    for number, entry in images.items():
        name = entry.get("file_name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            findings.add(path, None, f"image {number} has no file_name", lost="label")
            continue
        names[number] = PurePosixPath(name.replace("\\", "/")).name
        texts.setdefault(names[number], [])
    for number, annotation in annotations.items():
        reason = _add(annotation, names, texts)
        if reason is not None:
            findings.add(path, None, f"annotation {number}: {reason}", lost="label")
    return texts


def _both(content: Any, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(content, dict):
        for images, annotations in (("imgs", "anns"), ("images", "annotations")):
            if images in content and annotations in content:
                return _by_number(content[images], path, images), _by_number(content[annotations], path, annotations)
    raise BadFileError(path, "it has neither `imgs` and `anns` (COCO-Text) nor `images` and `annotations` (COCO)")


def _by_number(entries: Any, path: Path, name: str) -> dict[str, Any]:
    if isinstance(entries, dict):
        return {str(number): entry for number, entry in entries.items()}
    if isinstance(entries, list):
        return {
            str(entry["id"]) if isinstance(entry, dict) and "id" in entry else f"at position {place}": entry
            for place, entry in enumerate(entries)
        }
    raise BadFileError(path, f"its `{name}` is neither an object nor a list")


def _add(annotation: Any, names: dict[str, str], texts: dict[str, list[Labelled]]) -> str | None:
    """Add one annotation to the texts of its image; return the reason if it cannot be used."""
    if not isinstance(annotation, dict):
        return "it is not an object"
    image = names.get(str(annotation.get("image_id")))
    if image is None:
        return f"its image {annotation.get('image_id')!r} is not in the file"
    numbers = _numbers(annotation)
    if numbers is None:
        return "it has no mask, polygon, segmentation or bbox with at least three corners"
    ignored = annotation.get("legibility") == "illegible" or bool(annotation.get("iscrowd"))
    ignored = ignored or annotation.get("utf8_string") == "###"
    texts[image].append((numbers.reshape(-1, 2), ignored))
    return None


def _numbers(annotation: dict[str, Any]) -> npt.NDArray[np.float32] | None:
    for name in ("mask", "polygon", "segmentation"):
        value = annotation.get(name)
        if isinstance(value, list) and value and isinstance(value[0], list):
            value = value[0]
        if isinstance(value, list) and len(value) >= 6 and len(value) % 2 == 0 and _all_numbers(value):
            return np.asarray(value, dtype=np.float32)
    box = annotation.get("bbox")
    if isinstance(box, list) and len(box) == 4 and _all_numbers(box):
        left, top, width, height = box
        right, bottom = left + width, top + height
        return np.asarray([left, top, right, top, right, bottom, left, bottom], dtype=np.float32)
    return None


def _all_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST for value in values)
