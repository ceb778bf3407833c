"""Read COCO JSON: one file for all images, with `images`, `annotations` and `categories`.

A box is x, y (its upper left corner), width and height, in pixels. Crowd regions (`iscrowd`: 1) are not single objects and
are not used for training. JSON has no useful line numbers, so a finding names the annotation instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

from hasten.recipes.detection.labels.contract import Label, LabelError, fitted, number
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import read_text


class CocoSource:
    """The labels of a COCO JSON file.

    Args:
        path: The file.
        images: The image files.

    Raises:
        DataError: The file is not JSON, or not in COCO format. The message names the file and the line.
    """

    classes: tuple[str, ...] | None

    def __init__(self, path: Path, images: list[Path]) -> None:
        self._path = path
        content = _read(path)
        self._names = _categories(content["categories"], path)
        self.classes = tuple(self._names.values())
        self._findings = Findings()
        self._images, self._twice = self._by_file_name(content["images"], {image.name for image in images})
        self._annotations = self._by_image(content["annotations"])

    def place_of(self, image: Path) -> Path:
        """Return the COCO file."""
        return self._path

    def labels_of(self, image: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """Return the labels of one image."""
        entry = self._images.get(image.name)
        if entry is None:
            raise BadFileError(image, f"{self._path} does not list it: images without objects must be listed too")
        if image.name in self._twice:
            raise BadFileError(self._path, f"{image.name} is listed twice under `images`: remove one entry")
        self._check_size(entry, image, size)
        found = []
        for number_in_file, annotation in self._annotations.get(entry["id"], ()):
            try:
                found.append(self._label(annotation, size))
            except LabelError as error:
                reason = f"{_describe(annotation, number_in_file)} of {image.name}: {error}"
                findings.add(self._path, None, reason, lost="label", about=image)
        return found

    def finish(self, findings: Findings) -> None:
        """Report entries without an image."""
        findings.take(self._findings)

    def _by_file_name(self, entries: list[Any], existing: set[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Return the entries of existing images by file name, and the names that several entries (or their ids) share."""
        found: dict[str, dict[str, Any]] = {}
        ids: dict[Any, str] = {}
        duplicates: set[str] = set()
        absent: list[str] = []
        for index, entry in enumerate(entries):
            is_valid = isinstance(entry, dict) and isinstance(entry.get("file_name"), str) and _is_id(entry.get("id"))
            if not is_valid:
                self._findings.add(self._path, None, f"entry {index} of `images` has no file_name or no id", lost="nothing")
                continue
            name = PurePosixPath(entry["file_name"].replace("\\", "/")).name
            if name in found:
                duplicates.add(name)
            if entry["id"] in ids and ids[entry["id"]] != name:
                duplicates.update((name, ids[entry["id"]]))
            found[name] = entry
            ids[entry["id"]] = name
            if name not in existing:
                absent.append(name)
        if absent:
            count = "an image is" if len(absent) == 1 else f"{len(absent)} images are"
            self._findings.add(self._path, None, f"{count} listed but missing, such as {absent[0]}", lost="nothing")
        return found, duplicates

    def _by_image(self, annotations: list[Any]) -> dict[Any, list[tuple[int, dict[str, Any]]]]:
        grouped: dict[Any, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        known = {entry["id"] for entry in self._images.values()}
        for index, annotation in enumerate(annotations):
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            if not _is_id(image_id) or image_id not in known:
                reason = f"{_describe(annotation, index)} belongs to no listed image (image_id {str(image_id)[:40]})"
                self._findings.add(self._path, None, reason, lost="label")
            elif annotation.get("iscrowd") != 1:
                grouped[image_id].append((index, annotation))
        return grouped

    def _check_size(self, entry: dict[str, Any], image: Path, size: tuple[int, int]) -> None:
        listed_size = entry.get("height"), entry.get("width")
        if all(isinstance(side, int | float) and side > 0 for side in listed_size) and listed_size != size:
            hint = " (possibly due to its EXIF orientation)" if listed_size == size[::-1] else ""
            reason = (
                f"{image.name} is listed with {listed_size[1]}x{listed_size[0]} pixels but has {size[1]}x{size[0]}{hint}"
            )
            raise BadFileError(self._path, f"{reason}: label it again")

    def _label(self, annotation: dict[str, Any], size: tuple[int, int]) -> Label:
        category, box = annotation.get("category_id"), annotation.get("bbox")
        if not _is_id(category) or category not in self._names:
            raise LabelError(f"category_id {str(category)[:40]} is unknown")
        if not isinstance(box, list) or len(box) != 4:
            raise LabelError("its bbox is not a list of four numbers: x, y, width, height")
        left, top, width, height = (number(value) for value in box)
        return Label(self._names[category], fitted(left, top, left + width, top + height, size), None)


def _read(path: Path) -> dict[str, list[Any]]:
    text = read_text(path)
    if not text.strip():
        raise BadFileError(path, "the file is empty: export the labels again")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFileError(path, f"it is not valid JSON ({error.msg})", line=error.lineno) from error
    except RecursionError as error:
        raise BadFileError(path, "it is nested too deeply to be COCO JSON") from error
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise BadFileError(path, f"it is not COCO JSON: a list under `{part}` is missing")
    found: dict[str, list[Any]] = content
    return found


def _categories(categories: list[Any], path: Path) -> dict[Any, str]:
    """Return the class names by id, in the order of the ids."""
    names: dict[Any, str] = {}
    for index, category in enumerate(categories):
        is_valid = (
            isinstance(category, dict) and isinstance(category.get("id"), int) and isinstance(category.get("name"), str)
        )
        if not is_valid:
            raise BadFileError(path, f"entry {index} of `categories` has no integer id or no name")
        if category["id"] in names or category["name"] in names.values():
            raise BadFileError(path, f"the category {category['name']!r} or its id {category['id']} is listed twice")
        names[category["id"]] = category["name"]
    return dict(sorted(names.items()))


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _describe(annotation: Any, index: int) -> str:
    annotation_id = annotation.get("id") if isinstance(annotation, dict) else None
    return f"annotation {annotation_id}" if _is_id(annotation_id) else f"entry {index} of `annotations`"
