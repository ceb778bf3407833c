"""Read YOLO text: one file per image, one line per box: `class x y width height`, as fractions of the image's size.

x and y are the centre of the box. A line may also be a polygon (`class x1 y1 x2 y2 x3 y3 ...`), as for segmentation; its
bounding box is used. An image whose file is empty or missing has no objects, as in Darknet and its successors.
"""

from __future__ import annotations

from pathlib import Path

from hasten.core.errors import DataError
from hasten.recipes.detection.labels.contract import Box, Label, LabelError, fitted, number
from hasten.recipes.detection.labels.names import LISTS, find_names
from hasten.recipes.findings import Findings
from hasten.recipes.pictures import read_text

MOST_CLASSES = 10_000
"""Limit of class numbers; a larger one is treated as a typing error."""
_FAR = 2.0
"""Limit of coordinates; larger ones are pixels instead of fractions."""


def is_list_of_classes(path: Path) -> bool:
    """Return whether a file next to the labels is a class list or notes instead of labels."""
    return path.name in LISTS or path.name in {"notes.json", "train.txt", "val.txt", "test.txt", "predefined_classes.txt"}


class YoloSource:
    """The labels of a folder of YOLO text files.

    Args:
        folder: The folder; `find_names` documents where the class list is searched.
        files: The text files by stem.
        images: The image files.

    Raises:
        DataError: The class list is invalid.
    """

    def __init__(self, folder: Path, files: dict[str, Path], images: list[Path]) -> None:
        self._folder, self._files = folder, files
        self._stems = {image.stem for image in images}
        self._listed = find_names(folder)
        self.classes = self._listed
        if self._listed is None:
            self.classes = tuple(str(class_number) for class_number in range(self._highest() + 1))

    def place_of(self, image: Path) -> Path:
        """Return the text file of an image."""
        return self._files.get(image.stem, self._folder / f"{image.stem}.txt")

    def labels_of(self, image: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """Return the labels of one image."""
        path = self._files.get(image.stem)
        if path is None:
            return []
        labels = []
        for line, text in enumerate(lines_of(read_text(path)), start=1):
            fields = text.split()
            if not fields:
                continue
            try:
                labels.append(Label(self._name(fields[0]), _box(fields[1:], size), line))
            except LabelError as error:
                findings.add(path, line, str(error), lost="label", about=image)
        return labels

    def finish(self, findings: Findings) -> None:
        """Report text files without an image."""
        without_image(self._folder, {stem: path.name for stem, path in self._files.items()}, self._stems, findings)

    def _name(self, word: str) -> str:
        class_number = _class_number(word)
        if self._listed is None:
            return str(class_number)
        if class_number >= len(self._listed):
            raise LabelError(f"class {class_number} is unknown: there are {len(self._listed)} classes, counted from 0")
        return self._listed[class_number]

    def _highest(self) -> int:
        """Return the highest class number in any file. Unreadable files are reported later, with their image."""
        highest = -1
        for stem in self._stems & self._files.keys():
            try:
                text = read_text(self._files[stem])
            except DataError:
                continue
            for line in lines_of(text):
                fields = line.split(maxsplit=1)
                try:
                    highest = max(highest, _class_number(fields[0])) if fields else highest
                except LabelError:
                    continue
        return highest


def lines_of(text: str) -> list[str]:
    """Split a text into lines as editors do."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def without_image(folder: Path, names: dict[str, str], stems: set[str], findings: Findings) -> None:
    """Report, in one finding, which label files have no image.

    Args:
        folder: Folder of the labels.
        names: File names by stem.
        stems: Stems of the images.
        findings: Receives the finding.
    """
    unmatched = [name for stem, name in names.items() if stem not in stems]
    if unmatched:
        count = "a file has" if len(unmatched) == 1 else f"{len(unmatched)} files have"
        findings.add(folder, None, f"{count} no image of the same name, such as {unmatched[0]}", lost="nothing")


def _class_number(word: str) -> int:
    try:
        value = number(word)
    except LabelError as error:
        raise LabelError(f"{word!r} is not a class: a line starts with its class number") from error
    if value < 0 or value != int(value) or value >= MOST_CLASSES:
        raise LabelError(f"{word!r} is not a class: it must be a whole number, at least 0")
    return int(value)


def _box(fields: list[str], size: tuple[int, int]) -> Box:
    if len(fields) < 4 or (len(fields) != 4 and (len(fields) < 6 or len(fields) % 2)):
        raise LabelError(f"{len(fields) + 1} numbers in a line; a box needs 5: class, x, y, width, height")
    values = [number(word) for word in fields]
    largest = max(values, key=abs)
    if abs(largest) > _FAR:
        raise LabelError(f"{largest:g} is not a fraction of the image, which ranges from 0 to 1: are these pixels?")
    height, width = size
    if len(values) > 4:
        xs, ys = values[0::2], values[1::2]
        left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
    else:
        x, y, box_width, box_height = values
        left, top, right, bottom = x - box_width / 2, y - box_height / 2, x + box_width / 2, y + box_height / 2
    return fitted(left * width, top * height, right * width, bottom * height, size)
