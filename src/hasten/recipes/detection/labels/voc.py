"""Read Pascal VOC XML: one file per image, one `object` per box, in pixels.

The files are parsed by Expat, which gives the line of each object. Entities are never expanded: a file with a document type
or entities is rejected. Coordinates are used unchanged, as in torchvision and most tools (VOC itself counts pixels from 1).
Objects marked difficult, truncated or occluded are used like all others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from hasten.recipes.detection.labels.contract import Label, LabelError, label, number
from hasten.recipes.detection.labels.yolo import without_image
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import read_text

_OBJECT = ("annotation", "object")
_NAME = (*_OBJECT, "name")
_BOX = (*_OBJECT, "bndbox")
_SIZE = ("annotation", "size")
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MAX_DEPTH = 50
"""Largest nesting depth of tags."""
_ENCODING = re.compile(rb"""^<\?xml[^>]*\bencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")


class VocSource:
    """The labels of a folder of VOC XML files. The class names are those found in the labels.

    Args:
        folder: The folder.
        files: The XML files by stem.
        images: The image files.
        encoding: Encoding of files that are not UTF-8 and declare none.
    """

    classes: tuple[str, ...] | None = None
    understood = "Labels are VOC XML: xmin, ymin, xmax, ymax in pixels; difficult and truncated objects are used too."

    def __init__(self, folder: Path, files: dict[str, Path], images: list[Path], encoding: str | None = None) -> None:
        self._folder, self._files, self._encoding = folder, files, encoding
        self._stems = {image.stem for image in images}

    def place_of(self, image: Path) -> Path:
        """Return the XML file of an image."""
        return self._files.get(image.stem, self._folder / f"{image.stem}.xml")

    def labels_of(self, image: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """Return the labels of one image."""
        path = self._files.get(image.stem)
        if path is None:
            raise BadFileError(image, f"{self._folder} has no {image.stem}.xml for it: images without objects need one too")
        read = _read(path, self._encoding)
        _check_size(read.size, size, path)
        labels = []
        for one in read.objects:
            try:
                labels.append(_label(one, size))
            except LabelError as error:
                findings.add(path, one.line, str(error), lost="label", about=image)
        return labels

    def finish(self, findings: Findings) -> None:
        """Report XML files without an image."""
        without_image(self._folder, {stem: path.name for stem, path in self._files.items()}, self._stems, findings)


@dataclass
class _Object:
    line: int
    values: dict[str, str] = field(default_factory=dict)
    repeated: str = ""


@dataclass
class _Annotation:
    """The parts of a file that are used: its objects, and the image size it states."""

    objects: list[_Object] = field(default_factory=list)
    size: dict[str, str] = field(default_factory=dict)
    root: str = ""


def _read(path: Path, encoding: str | None) -> _Annotation:
    text = _text(path, encoding)
    if not text.strip():
        raise BadFileError(path, "the file is empty: label the image, or remove it")
    read = _parsed(text, path)
    if read.root != "annotation":
        raise BadFileError(path, f"it starts with <{read.root}>, but VOC labels start with <annotation>")
    return read


def _parsed(text: str, path: Path) -> _Annotation:
    read = _Annotation()
    path_of_tags: list[str] = []
    chunks: list[str] = []
    parser = expat.ParserCreate(encoding="utf-8")  # the encoding passed below; the declared one is ignored

    def start(name: str, _: dict[str, str]) -> None:
        path_of_tags.append(name)
        if len(path_of_tags) > _MAX_DEPTH:
            raise BadFileError(path, "it is nested too deeply to be VOC labels", line=parser.CurrentLineNumber)
        chunks.clear()
        read.root = read.root or name
        if tuple(path_of_tags) == _OBJECT:
            read.objects.append(_Object(parser.CurrentLineNumber))

    def end(name: str) -> None:
        place = tuple(path_of_tags)
        path_of_tags.pop()
        value = "".join(chunks).strip()
        chunks.clear()
        if place == _NAME or place[:-1] == _BOX:
            one = read.objects[-1]
            one.repeated = one.repeated or (name if name in one.values else "")
            one.values[name] = value
        elif place[:-1] == _SIZE:
            read.size.setdefault(name, value)

    def refuse(*_: Any) -> None:
        raise BadFileError(path, "it contains a document type or an entity: remove it", line=parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, chunks.append
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode(), True)  # noqa: FBT003  the flag means final
    except expat.ExpatError as error:
        raise BadFileError(path, f"it is not valid XML ({expat.errors.messages[error.code]})", line=error.lineno) from error
    return read


def _text(path: Path, encoding: str | None) -> str:
    """Read the file as UTF-8, which most tools write whatever they declare, else in the encoding given or declared."""
    try:
        return read_text(path)
    except BadFileError:
        try:
            with path.open("rb") as file:
                declared = _ENCODING.match(file.read(200))
        except OSError:
            declared = None
        used = encoding or (declared and declared[1].decode())
        if not used or used.lower().replace("_", "-") in {"utf-8", "utf8"}:
            raise
        return read_text(path, used)


def _check_size(stated: dict[str, str], size: tuple[int, int], path: Path) -> None:
    """Reject labels made for an image of another size: their boxes would be misplaced."""
    try:
        stated_size = int(number(stated.get("height", "0"))), int(number(stated.get("width", "0")))
    except LabelError as error:
        raise BadFileError(path, f"its image size is invalid: {error}") from error
    if min(stated_size) <= 0 or stated_size == size:  # some tools leave it out, or write 0
        return
    hint = " (possibly due to its EXIF orientation)" if stated_size == size[::-1] else ""
    reason = (
        f"it was made for an image of {stated_size[1]}x{stated_size[0]} pixels, but this one has {size[1]}x{size[0]}{hint}"
    )
    raise BadFileError(path, f"{reason}: label it again")


def _label(one: _Object, size: tuple[int, int]) -> Label:
    name = one.values.get("name", "")
    if one.repeated:
        raise LabelError(f"an object has {one.repeated} twice")
    if not name:
        raise LabelError("an object has no name")
    missing = [edge for edge in _EDGES if edge not in one.values]
    if missing:
        raise LabelError(f"an object has no {missing[0]} in its bndbox")
    left, top, right, bottom = (number(one.values[edge]) for edge in _EDGES)
    return label(name, (left, top, right, bottom), one.line, size)
