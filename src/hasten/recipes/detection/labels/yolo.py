"""YOLO text: a file a picture, a line a box: `class x y width height`, as shares of the picture's width and height.

x and y are the box's middle. A line may also be a polygon (`class x1 y1 x2 y2 x3 y3 ...`), as for segmentation: its
bounding box is taken. A picture whose file is empty or missing shows nothing, as Darknet and its successors read it.
"""

from __future__ import annotations

from pathlib import Path

from hasten.core.errors import DataError
from hasten.recipes.detection.labels.contract import Box, Label, LabelError, fitted, number
from hasten.recipes.detection.labels.names import LISTS, find_names
from hasten.recipes.findings import Findings
from hasten.recipes.pictures import read_text

MOST_CLASSES = 10_000
"""A larger number is a slip, not a class."""
_FAR = 2.0
"""Beyond this no box is meant: the numbers are pixels."""


def is_list_of_classes(path: Path) -> bool:
    """Whether a file beside the labels is the list of the classes, or notes, rather than labels."""
    return path.name in LISTS or path.name in {"notes.json", "train.txt", "val.txt", "test.txt", "predefined_classes.txt"}


class YoloSource:
    """The labels of a folder of YOLO text files.

    Args:
        folder: Where they lie; `find_names` says where the list of the classes is looked for.
        files: The text files by their stems.
        pictures: The files of the pictures.

    Raises:
        DataError: The list of classes is there and wrong.
    """

    def __init__(self, folder: Path, files: dict[str, Path], pictures: list[Path]) -> None:
        self._folder, self._files = folder, files
        self._stems = {picture.stem for picture in pictures}
        self._listed = find_names(folder)
        self.classes = self._listed
        if self._listed is None:
            self.classes = tuple(str(at) for at in range(self._highest() + 1))

    def place_of(self, picture: Path) -> Path:
        """The text file of a picture."""
        return self._files.get(picture.stem, self._folder / f"{picture.stem}.txt")

    def labels_of(self, picture: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """The labels of one picture."""
        path = self._files.get(picture.stem)
        if path is None:
            return []
        found = []
        for line, text in enumerate(lines_of(read_text(path)), start=1):
            words = text.split()
            if not words:
                continue
            try:
                found.append(Label(self._name(words[0]), _box(words[1:], size), line))
            except LabelError as error:
                findings.add(path, line, str(error), lost="label", about=picture)
        return found

    def finish(self, findings: Findings) -> None:
        """Say which text files have no picture."""
        without_picture(self._folder, {stem: path.name for stem, path in self._files.items()}, self._stems, findings)

    def _name(self, word: str) -> str:
        at = _class_number(word)
        if self._listed is None:
            return str(at)
        if at >= len(self._listed):
            raise LabelError(f"class {at} is unknown: there are {len(self._listed)}, counted from 0")
        return self._listed[at]

    def _highest(self) -> int:
        """The highest class that any file has; what cannot be read is told later, when its picture's turn comes."""
        highest = -1
        for stem in self._stems & self._files.keys():
            try:
                text = read_text(self._files[stem])
            except DataError:
                continue
            for line in lines_of(text):
                words = line.split(maxsplit=1)
                try:
                    highest = max(highest, _class_number(words[0])) if words else highest
                except LabelError:
                    continue
        return highest


def lines_of(text: str) -> list[str]:
    """The lines of a text, as editors count them."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def without_picture(folder: Path, names: dict[str, str], stems: set[str], findings: Findings) -> None:
    """Say, in one finding, which files of labels have no picture.

    Args:
        folder: Of the labels.
        names: The names of the files by their stems.
        stems: Of the pictures.
        findings: Takes the finding.
    """
    alone = [name for stem, name in names.items() if stem not in stems]
    if alone:
        count = "a file has" if len(alone) == 1 else f"{len(alone)} files have"
        findings.add(folder, None, f"{count} no picture of the same name, such as {alone[0]}", lost="nothing")


def _class_number(word: str) -> int:
    try:
        value = number(word)
    except LabelError as error:
        raise LabelError(f"{word!r} is no class: a line begins with the number of its class") from error
    if value < 0 or value != int(value) or value >= MOST_CLASSES:
        raise LabelError(f"{word!r} is no class: a whole number from 0 on is")
    return int(value)


def _box(words: list[str], size: tuple[int, int]) -> Box:
    if len(words) < 4 or (len(words) != 4 and (len(words) < 6 or len(words) % 2)):
        raise LabelError(f"{len(words) + 1} numbers in a line, where 5 are a box: class, x, y, width, height")
    values = [number(word) for word in words]
    far = max(values, key=abs)
    if abs(far) > _FAR:
        raise LabelError(f"{far:g} is no share of a picture, which goes from 0 to 1: are these pixels?")
    height, width = size
    if len(values) > 4:
        xs, ys = values[0::2], values[1::2]
        left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
    else:
        x, y, wide, high = values
        left, top, right, bottom = x - wide / 2, y - high / 2, x + wide / 2, y + high / 2
    return fitted(left * width, top * height, right * width, bottom * height, size)
