"""COCO JSON: one file for all pictures, with `images`, `annotations` and `categories`.

A box is x, y (its upper left corner), width and height, in pixels. Crowd regions (`iscrowd`: 1) are no single objects
and are not learned from. Since JSON has no lines worth telling, a finding names the annotation.
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
        pictures: The files of the pictures.

    Raises:
        DataError: It is no JSON, or not COCO's; names the file and the line.
    """

    classes: tuple[str, ...] | None

    def __init__(self, path: Path, pictures: list[Path]) -> None:
        self._path = path
        content = _read(path)
        self._names = _categories(content["categories"], path)
        self.classes = tuple(self._names.values())
        self._findings = Findings()
        self._images, self._twice = self._by_file_name(content["images"], {picture.name for picture in pictures})
        self._annotations = self._by_image(content["annotations"])

    def place_of(self, picture: Path) -> Path:
        """The one file."""
        return self._path

    def labels_of(self, picture: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """The labels of one picture."""
        image = self._images.get(picture.name)
        if image is None:
            raise BadFileError(picture, f"{self._path} does not list it: a picture without objects is listed too")
        if picture.name in self._twice:
            raise BadFileError(self._path, f"{picture.name} is listed twice under `images`: leave one")
        self._check_size(image, picture, size)
        found = []
        for number_in_file, annotation in self._annotations.get(image["id"], ()):
            try:
                found.append(self._label(annotation, size))
            except LabelError as error:
                reason = f"{_called(annotation, number_in_file)} of {picture.name}: {error}"
                findings.add(self._path, None, reason, lost="label", about=picture)
        return found

    def finish(self, findings: Findings) -> None:
        """Say which entries belong to no picture."""
        findings.take(self._findings)

    def _by_file_name(self, images: list[Any], there: set[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """The entries of the pictures that are there, and the names that several entries share (or whose id they share)."""
        found: dict[str, dict[str, Any]] = {}
        ids: dict[Any, str] = {}
        twice: set[str] = set()
        absent: list[str] = []
        for at, image in enumerate(images):
            sound = isinstance(image, dict) and isinstance(image.get("file_name"), str) and _is_id(image.get("id"))
            if not sound:
                self._findings.add(self._path, None, f"entry {at} of `images` has no file_name or no id", lost="nothing")
                continue
            name = PurePosixPath(image["file_name"].replace("\\", "/")).name
            if name in found:
                twice.add(name)
            if image["id"] in ids and ids[image["id"]] != name:
                twice.update((name, ids[image["id"]]))
            found[name] = image
            ids[image["id"]] = name
            if name not in there:
                absent.append(name)
        if absent:
            count = "a picture is" if len(absent) == 1 else f"{len(absent)} pictures are"
            self._findings.add(self._path, None, f"{count} listed and not there, such as {absent[0]}", lost="nothing")
        return found, twice

    def _by_image(self, annotations: list[Any]) -> dict[Any, list[tuple[int, dict[str, Any]]]]:
        grouped: dict[Any, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        known = {image["id"] for image in self._images.values()}
        for at, annotation in enumerate(annotations):
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            if not _is_id(image_id) or image_id not in known:
                reason = f"{_called(annotation, at)} belongs to no listed picture (image_id {str(image_id)[:40]})"
                self._findings.add(self._path, None, reason, lost="label")
            elif annotation.get("iscrowd") != 1:
                grouped[image_id].append((at, annotation))
        return grouped

    def _check_size(self, image: dict[str, Any], picture: Path, size: tuple[int, int]) -> None:
        told = image.get("height"), image.get("width")
        if all(isinstance(side, int | float) and side > 0 for side in told) and told != size:
            turned = " (turned by its EXIF orientation, perhaps)" if told == size[::-1] else ""
            reason = f"{picture.name} is listed with {told[1]}x{told[0]} pixels and has {size[1]}x{size[0]}{turned}"
            raise BadFileError(self._path, f"{reason}: label it anew")

    def _label(self, annotation: dict[str, Any], size: tuple[int, int]) -> Label:
        category, box = annotation.get("category_id"), annotation.get("bbox")
        if not _is_id(category) or category not in self._names:
            raise LabelError(f"category_id {str(category)[:40]} is unknown")
        if not isinstance(box, list) or len(box) != 4:
            raise LabelError("its bbox is no list of four numbers: x, y, width, height")
        left, top, width, height = (number(value) for value in box)
        return Label(self._names[category], fitted(left, top, left + width, top + height, size), None)


def _read(path: Path) -> dict[str, list[Any]]:
    text = read_text(path)
    if not text.strip():
        raise BadFileError(path, "the file is empty: export the labels again")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFileError(path, f"it is no JSON ({error.msg})", line=error.lineno) from error
    except RecursionError as error:
        raise BadFileError(path, "it is nested too deeply to be COCO JSON") from error
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise BadFileError(path, f"it is no COCO JSON, which has a list under `{part}`")
    found: dict[str, list[Any]] = content
    return found


def _categories(categories: list[Any], path: Path) -> dict[Any, str]:
    """The names of the classes by their ids, in the order of these."""
    names: dict[Any, str] = {}
    for at, category in enumerate(categories):
        sound = isinstance(category, dict) and isinstance(category.get("id"), int) and isinstance(category.get("name"), str)
        if not sound:
            raise BadFileError(path, f"entry {at} of `categories` has no whole number as id, or no name")
        if category["id"] in names or category["name"] in names.values():
            raise BadFileError(path, f"the category {category['name']!r} or its id {category['id']} is there twice")
        names[category["id"]] = category["name"]
    return dict(sorted(names.items()))


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _called(annotation: Any, at: int) -> str:
    named = annotation.get("id") if isinstance(annotation, dict) else None
    return f"annotation {named}" if _is_id(named) else f"entry {at} of `annotations`"
