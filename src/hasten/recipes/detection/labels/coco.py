"""Read COCO JSON: one file for all images, with `images`, `annotations` and `categories`.

A box is x, y (its upper left corner), width and height, in pixels. Crowd regions (`iscrowd`: 1) are not single objects and
are not used for training. Ids may be numbers or text: 7 and "7" are one. JSON has no useful line numbers, so a finding names
the annotation instead.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from hasten.recipes.detection.labels.contract import Label, LabelError, label, number
from hasten.recipes.findings import BadFileError, Findings, many
from hasten.recipes.json_file import read_json
from hasten.recipes.listed_images import Listed, is_crowd, key_of, listed, matched

_WHOLE = re.compile(r"-?[0-9]{1,20}")


class CocoSource:
    """The labels of a COCO JSON file.

    Args:
        path: The file.
        images: The image files.
        encoding: Encoding of a file that is not UTF-8.

    Raises:
        DataError: The file is not JSON, or not in COCO format. The message names the file and the line.
    """

    classes: tuple[str, ...] | None
    understood = "Labels are COCO JSON: bbox as x, y, width, height in pixels; crowd regions are not used."

    def __init__(self, path: Path, images: list[Path], encoding: str | None = None) -> None:
        self._path = path
        content = _read(path, encoding)
        self._names = _categories(content["categories"], path)
        self.classes = tuple(self._names.values())
        self._findings = Findings()
        entries = self._entries(content["images"])
        self._matched = matched(entries, images)
        if absent := self._matched.absent:
            count = "an image is" if len(absent) == 1 else f"{len(absent)} images are"
            self._findings.add(path, None, f"{count} listed but missing, such as {absent[0]}", lost="nothing")
        self._annotations = self._by_id(content["annotations"], {entry.id for entry in entries})

    def place_of(self, image: Path) -> Path:
        """Return the COCO file."""
        return self._path

    def labels_of(self, image: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """Return the labels of one image."""
        if image in self._matched.twice:
            raise BadFileError(self._path, f"{image.name} or its id is listed twice under `images`: remove one entry")
        entry = self._matched.found.get(image)
        if entry is None:
            raise BadFileError(image, f"{self._path} does not list it: images without objects must be listed too")
        if (reason := entry.other_size(size)) is not None:
            raise BadFileError(self._path, reason)
        found = []
        for number_in_file, annotation in self._annotations.get(entry.id, ()):
            try:
                found.append(self._label(annotation, size))
            except LabelError as error:
                reason = f"{_describe(annotation, number_in_file)} of {image.name}: {error}"
                findings.add(self._path, None, reason, lost="label", about=image)
        return found

    def finish(self, findings: Findings) -> None:
        """Report entries without an image, and crowd regions."""
        findings.take(self._findings)

    def _entries(self, images: list[Any]) -> list[Listed]:
        """Return the usable entries of `images`."""
        entries = []
        for index, values in enumerate(images):
            entry = listed(values, key_of(values.get("id")) if isinstance(values, dict) else None)
            if entry is None:
                self._findings.add(self._path, None, f"entry {index} of `images` has no file_name or no id", lost="nothing")
            else:
                entries.append(entry)
        return entries

    def _by_id(self, annotations: list[Any], known: set[str]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        """Return the annotations of each image id."""
        grouped: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        ids: Counter[str] = Counter()
        num_crowds = 0
        for index, annotation in enumerate(annotations):
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            key = key_of(image_id)
            if key is None or key not in known:
                reason = f"{_describe(annotation, index)} belongs to no listed image (image_id {str(image_id)[:40]})"
                self._findings.add(self._path, None, reason, lost="label")
                continue
            if (own := key_of(annotation.get("id"))) is not None:
                ids[own] += 1
            if is_crowd(annotation):
                num_crowds += 1
            else:
                grouped[key].append((index, annotation))
        if num_crowds:
            self._findings.add(self._path, None, f"{many(num_crowds, 'crowd region')} not used", lost="nothing")
        if twice := [one for one, count in ids.items() if count > 1]:
            reason = f"{many(len(twice), 'id')} of annotations used more than once, such as {twice[0]}"
            self._findings.add(self._path, None, reason, lost="nothing")
        return grouped

    def _label(self, annotation: dict[str, Any], size: tuple[int, int]) -> Label:
        category, box = annotation.get("category_id"), annotation.get("bbox")
        key = key_of(category)
        if key is None or key not in self._names:
            raise LabelError(f"category_id {str(category)[:40]} is unknown")
        if not isinstance(box, list) or len(box) != 4:
            raise LabelError("its bbox is not a list of four numbers: x, y, width, height")
        left, top, width, height = (number(value) for value in box)
        return label(self._names[key], (left, top, left + width, top + height), None, size)


def _read(path: Path, encoding: str | None) -> dict[str, list[Any]]:
    content = read_json(path, encoding)
    if isinstance(content, list) and content and isinstance(content[0], dict) and "image_id" in content[0]:
        raise BadFileError(path, "it holds the results of a detector: give the file with `images` and `annotations`")
    if isinstance(content, dict) and isinstance(content.get("shapes"), list):
        raise BadFileError(
            path, "it is LabelMe JSON, which describes one image: convert the labels to COCO JSON or YOLO text"
        )
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise BadFileError(path, f"it is not COCO JSON: a list under `{part}` is missing")
    found: dict[str, list[Any]] = content
    return found


def _categories(categories: list[Any], path: Path) -> dict[str, str]:
    """Return the class names by id, in the order of the ids: numbers by value, before text."""
    names: dict[str, str] = {}
    for index, category in enumerate(categories):
        key, name = (key_of(category.get("id")), category.get("name")) if isinstance(category, dict) else (None, None)
        if key is None or not isinstance(name, str) or not name.strip():
            raise BadFileError(path, f"entry {index} of `categories` has no id or no name")
        if key in names or name in names.values():
            raise BadFileError(path, f"the category {name!r} or its id {key} is listed twice")
        names[key] = name
    if not names:
        raise BadFileError(path, "its `categories` are empty: list the classes, with id and name")
    return dict(sorted(names.items(), key=lambda one: (0, int(one[0]), "") if _WHOLE.fullmatch(one[0]) else (1, 0, one[0])))


def _describe(annotation: Any, index: int) -> str:
    key = key_of(annotation.get("id")) if isinstance(annotation, dict) else None
    return f"annotation {key}" if key is not None else f"entry {index} of `annotations`"
