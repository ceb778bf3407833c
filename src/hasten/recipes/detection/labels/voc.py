"""Pascal VOC XML: a file a picture, an `object` a box, in pixels.

Read by Expat, which tells the line of each object, and never expands anything: a file with a document type or entities
is refused. Coordinates are taken as they stand, as torchvision and most tools do (VOC itself counts pixels from 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from hasten.recipes.detection.labels.contract import Label, LabelError, fitted, number
from hasten.recipes.detection.labels.yolo import without_picture
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import read_text

_OBJECT = ("annotation", "object")
_NAME = (*_OBJECT, "name")
_BOX = (*_OBJECT, "bndbox")
_SIZE = ("annotation", "size")
_EDGES = ("xmin", "ymin", "xmax", "ymax")


class VocSource:
    """The labels of a folder of VOC XML files. The names of the classes are those found.

    Args:
        folder: Where they lie.
        files: The XML files by their stems.
        pictures: The files of the pictures.
    """

    classes: tuple[str, ...] | None = None

    def __init__(self, folder: Path, files: dict[str, Path], pictures: list[Path]) -> None:
        self._folder, self._files = folder, files
        self._stems = {picture.stem for picture in pictures}

    def place_of(self, picture: Path) -> Path:
        """The XML file of a picture."""
        return self._files.get(picture.stem, self._folder / f"{picture.stem}.xml")

    def labels_of(self, picture: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """The labels of one picture."""
        path = self._files.get(picture.stem)
        if path is None:
            raise BadFileError(
                picture, f"{self._folder} has no {picture.stem}.xml for it: a picture without objects has one too"
            )
        read = _read(path)
        _check_size(read.size, size, path)
        found = []
        for one in read.objects:
            try:
                found.append(_label(one, size))
            except LabelError as error:
                findings.add(path, one.line, str(error), lost="label", about=picture)
        return found

    def finish(self, findings: Findings) -> None:
        """Say which XML files have no picture."""
        without_picture(self._folder, {stem: path.name for stem, path in self._files.items()}, self._stems, findings)


@dataclass
class _Object:
    line: int
    values: dict[str, str] = field(default_factory=dict)


@dataclass
class _Annotation:
    """What is wanted of a file: its objects, and the size that it says its picture has."""

    objects: list[_Object] = field(default_factory=list)
    size: dict[str, str] = field(default_factory=dict)
    root: str = ""


def _read(path: Path) -> _Annotation:
    text = read_text(path)
    if not text.strip():
        raise BadFileError(path, "the file is empty: label the picture, or remove it")
    read = _Annotation()
    stack: list[str] = []
    words: list[str] = []
    parser = expat.ParserCreate(encoding="utf-8")  # as it is handed over below, whatever the file says of itself

    def start(name: str, _: dict[str, str]) -> None:
        stack.append(name)
        words.clear()
        read.root = read.root or name
        if tuple(stack) == _OBJECT:
            read.objects.append(_Object(parser.CurrentLineNumber))

    def end(name: str) -> None:
        place = tuple(stack)
        stack.pop()
        value = "".join(words).strip()
        words.clear()
        if place == _NAME or place[:-1] == _BOX:
            read.objects[-1].values.setdefault(name, value)
        elif place[:-1] == _SIZE:
            read.size.setdefault(name, value)

    def refuse(*_: Any) -> None:
        raise BadFileError(path, "a document type or entity stands in it: remove it", line=parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, words.append
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode(), True)  # noqa: FBT003  this is all of it
    except expat.ExpatError as error:
        raise BadFileError(path, f"it is no XML ({expat.errors.messages[error.code]})", line=error.lineno) from error
    if read.root != "annotation":
        raise BadFileError(path, f"it begins with <{read.root}>, and VOC labels with <annotation>")
    return read


def _check_size(said: dict[str, str], size: tuple[int, int], path: Path) -> None:
    """Refuse labels that were made for a picture of another size: their boxes would lie elsewhere."""
    try:
        told = int(number(said.get("height", "0"))), int(number(said.get("width", "0")))
    except LabelError as error:
        raise BadFileError(path, f"the size it gives for its picture is wrong: {error}") from error
    if min(told) <= 0 or told == size:  # some tools leave it out, or write 0
        return
    turned = " (turned by its EXIF orientation, perhaps)" if told == size[::-1] else ""
    reason = f"it was made for a picture of {told[1]}x{told[0]} pixels, and this one has {size[1]}x{size[0]}{turned}"
    raise BadFileError(path, f"{reason}: label it anew")


def _label(one: _Object, size: tuple[int, int]) -> Label:
    name = one.values.get("name", "")
    if not name:
        raise LabelError("an object without a name")
    missing = [edge for edge in _EDGES if edge not in one.values]
    if missing:
        raise LabelError(f"an object without {missing[0]} in its bndbox")
    left, top, right, bottom = (number(one.values[edge]) for edge in _EDGES)
    return Label(name, fitted(left, top, right, bottom, size), one.line)
