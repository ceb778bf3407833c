"""Read YOLO text: one file per image, one row per object: a class and a box or more, as fractions of the image's size.

What a row means is decided for all files together: see `yolo_rows`. x and y are the centre of a box. An image whose file is
empty or missing has no objects, as in Darknet and its successors. Text after `#` is a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hasten.recipes.detection.labels.contract import Label, LabelError, label, number
from hasten.recipes.detection.labels.names import LISTS, MOST_CLASSES, find_declared
from hasten.recipes.detection.labels.yolo_rows import decide
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import read_text

_THREADS = 8


def is_list_of_classes(path: Path) -> bool:
    """Return whether a file next to the labels is a class list or notes instead of labels."""
    return path.name in LISTS or path.name in {"notes.json", "train.txt", "val.txt", "test.txt", "predefined_classes.txt"}


class YoloSource:
    """The labels of a folder of YOLO text files.

    Args:
        folder: The folder; `find_declared` documents where the class list is searched.
        files: The text files by stem.
        images: The image files.
        rows: Kind of the rows; None decides by what is declared and by all rows.
        encoding: Encoding of the files; None is UTF-8.

    Raises:
        DataError: The class list is invalid, or the rows can be read in two ways.
    """

    def __init__(
        self,
        folder: Path,
        files: dict[str, Path],
        images: list[Path],
        *,
        rows: str | None = None,
        encoding: str | None = None,
    ) -> None:
        self._folder, self._files, self._images = folder, files, images
        declared = find_declared(folder, encoding)
        self._texts = _texts([files[image.stem] for image in images if image.stem in files], encoding)
        fields = (fields for text in self._texts.values() if isinstance(text, str) for _, fields in _rows(text))
        self._rows = decide(fields, folder, kind=rows, keypoints=declared.keypoints, source=declared.keypoints_file)
        self._listed, self._declared = declared.names, declared
        self.classes: tuple[str, ...] | None = declared.names or tuple(
            str(class_number) for class_number in range(self._highest() + 1)
        )
        listed = f"classes from {declared.names_file.name}" if declared.names_file else "no list of classes found"
        self.understood = f"Labels are YOLO text: {self._rows.words}; {listed}."

    def place_of(self, image: Path) -> Path:
        """Return the text file of an image."""
        return self._files.get(image.stem, self._folder / f"{image.stem}.txt")

    def labels_of(self, image: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """Return the labels of one image."""
        path = self._files.get(image.stem)
        if path is None:
            return []
        text = self._texts[path]
        if not isinstance(text, str):
            raise text
        labels = []
        for line, fields in _rows(text):
            try:
                name, values = self._name(fields[0]), self._rows.numbers_of(fields[1:])
                labels.append(label(name, _edges(values, size), line, size))
            except LabelError as error:
                findings.add(path, line, str(error), lost="label", about=image)
        return labels

    def finish(self, findings: Findings) -> None:
        """Report text files without an image, images without a text file, and lists of other classes."""
        for path in self._declared.others:
            reason = f"it lists other classes than {self._declared.names_file}, which is used: check which of them is right"
            findings.add(path, None, reason, lost="nothing")
        stems = {image.stem for image in self._images}
        without_image(self._folder, {stem: path.name for stem, path in self._files.items()}, stems, findings)
        background = [image.name for image in self._images if image.stem not in self._files]
        if background:
            count = "an image has" if len(background) == 1 else f"{len(background)} images have"
            reason = f"{count} no label file, such as {background[0]}: they count as images without objects"
            findings.add(self._folder, None, reason, lost="nothing")

    def _name(self, word: str) -> str:
        class_number = _class_number(word)
        if self._listed is None:
            return str(class_number)
        if class_number >= len(self._listed):
            raise LabelError(f"class {class_number} is unknown: there are {len(self._listed)} classes, counted from 0")
        return self._listed[class_number]

    def _highest(self) -> int:
        """Return the highest class number of the rows that can be read."""
        highest = -1
        for text in self._texts.values():
            for _, fields in _rows(text) if isinstance(text, str) else ():
                try:
                    self._rows.numbers_of(fields[1:])
                    highest = max(highest, _class_number(fields[0]))
                except LabelError:  # reported with its image
                    continue
        return highest


def _texts(paths: list[Path], encoding: str | None) -> dict[Path, str | BadFileError]:
    """Return the content of each file, or the reason why it cannot be read."""

    def one(path: Path) -> str | BadFileError:
        try:
            return read_text(path, encoding)
        except BadFileError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(paths, pool.map(one, paths), strict=True))


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each row, without comments and empty lines."""
    for line, row in enumerate(lines_of(text), start=1):
        if fields := row.partition("#")[0].split():
            yield line, fields


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
        hint = ", and spaces separate the numbers" if "," in word or ";" in word else ""
        raise LabelError(f"{word[:40]!r} is not a class: a row starts with its class number{hint}") from error
    if value < 0 or value != int(value) or value >= MOST_CLASSES:
        raise LabelError(f"{word!r} is not a class: it must be a whole number, at least 0")
    return int(value)


def _edges(values: list[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    height, width = size
    if len(values) > 4:
        xs, ys = values[0::2], values[1::2]
        left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
    else:
        x, y, box_width, box_height = values
        left, top, right, bottom = x - box_width / 2, y - box_height / 2, x + box_width / 2, y + box_height / 2
    return left * width, top * height, right * width, bottom * height
