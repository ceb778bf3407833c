"""Read a folder of pictures and their labels, whatever the format, with every fault on a list.

Pictures are looked at by their headers and ends, several at a time, and labels by their text; nothing is decoded that looks
sound. What can be used comes out the same for each format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hasten.core.errors import DataError
from hasten.recipes.detection.labels.coco import CocoSource
from hasten.recipes.detection.labels.contract import Item, Label, Labelled, Source
from hasten.recipes.detection.labels.voc import VocSource
from hasten.recipes.detection.labels.yolo import YoloSource, is_list_of_classes
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import check_picture, list_pictures

_THREADS = 8
"""Most of the time goes to waiting for the disk."""


def read_labels(
    images: Path,
    labels: Path,
    findings: Findings,
    *,
    classes: Sequence[str] | None = None,
    max_bad_frac: float = 0.1,
) -> Labelled:
    """Read pictures and their labels.

    Args:
        images: The folder of the pictures.
        labels: A folder of YOLO text files or VOC XML files named as the pictures are, or a COCO JSON file or the folder
            that holds one. May be the folder of the pictures.
        findings: Takes all that cannot be used.
        classes: The names of the classes in their order; None takes what the labels say: the list of names beside them
            (`classes.txt`, `obj.names`, `data.yaml`, `classes.json`; COCO's categories), or the names found, sorted (VOC),
            or numbers (YOLO).
        max_bad_frac: The largest share of pictures that may have faults; 1 accepts all.

    Returns:
        The pictures that can be used. One without labels is one without objects, where its format can say so: an empty or
        missing file for YOLO, no `object` for VOC, no annotation for COCO.

    Raises:
        DataError: A folder is missing or empty, the format cannot be told, the list of classes is wrong, or too much is bad.
        MachineError: Pillow is not installed.
    """
    images, labels = Path(images), Path(labels)
    pictures = list_pictures(images)
    source = _source(labels, pictures)

    def read_one(picture: Path) -> tuple[list[Label] | None, Findings]:
        found = Findings()
        try:
            size = check_picture(picture)
            return source.labels_of(picture, size, found), found
        except BadFileError as error:
            found.add_error(error, lost="picture", about=picture)
            return None, found

    with ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(read_one, pictures))
    names = tuple(classes) if classes is not None else source.classes
    if names is None:
        names = tuple(sorted({label.name for some, _ in read for label in some or ()}))
    index = {name: at for at, name in enumerate(names)}
    if len(index) != len(names):
        raise DataError(f"Of the classes {', '.join(names)} two have the same name: give each a name of its own.")
    items, here = [], Findings()
    for picture, (some, found) in zip(pictures, read, strict=True):
        here.take(found)
        if some is not None:
            items.append(_item(picture, source.place_of(picture), some, index, here))
    source.finish(here)
    findings.take(here)
    here.check(len(pictures), max_bad_frac)  # what another folder added counts there
    if not names:
        raise DataError(f"{labels} labels no object in any picture of {images}: there is nothing to learn.")
    return Labelled(names, tuple(items))


def _item(picture: Path, place: Path, labels: list[Label], index: dict[str, int], findings: Findings) -> Item:
    """One picture with the labels that are of a known class and stand there once."""
    kept: dict[Label, int] = {}
    for label in labels:
        alone = label._replace(line=None)
        if label.name not in index:
            reason = f"class {label.name!r} is unknown: the classes are {_some(list(index))}"
            findings.add(place, label.line, reason, lost="label", about=picture)
        elif alone in kept:
            findings.add(place, label.line, "the same label stands there before", lost="label", about=picture)
        else:
            kept[alone] = index[label.name]
    boxes = np.array([label.box for label in kept], np.float32).reshape(-1, 4)
    return Item(picture, boxes, np.fromiter(kept.values(), np.int64, len(kept)))


def _source(labels: Path, pictures: list[Path]) -> Source:
    """The format of the labels, told from the names of the files."""
    if labels.is_file():
        if labels.suffix.lower() != ".json":
            raise DataError(f"{labels} is no COCO JSON file: give one, or a folder of YOLO text or VOC XML files.")
        return CocoSource(labels, pictures)
    if not labels.is_dir():
        raise DataError(f"{labels} is missing: give the folder of the labels, or a COCO JSON file.")
    stems = {picture.stem for picture in pictures}
    texts, markups, jsons = _files(labels, ".txt"), _files(labels, ".xml"), _files(labels, ".json")
    texts = {stem: path for stem, path in texts.items() if stem in stems or not is_list_of_classes(path)}
    jsons = {stem: path for stem, path in jsons.items() if not is_list_of_classes(path)}
    made: dict[str, Callable[[], Source]] = {}
    if stems & texts.keys():
        made["YOLO text"] = lambda: YoloSource(labels, texts, pictures)
    if stems & markups.keys():
        made["VOC XML"] = lambda: VocSource(labels, markups, pictures)
    if not made and len(jsons) == 1:
        return CocoSource(next(iter(jsons.values())), pictures)
    if len(made) == 1:
        return next(iter(made.values()))()
    if made:
        raise DataError(f"{labels} holds {' and '.join(made)} of these pictures: give a folder with one of them.")
    if jsons:
        raise DataError(f"{labels} holds several JSON files ({_some(sorted(p.name for p in jsons.values()))}): name one.")
    seen = f"{len(texts)} .txt and {len(markups)} .xml files, none named as a picture is ({pictures[0].stem}.txt, for one)"
    raise DataError(f"{labels} holds no labels of the pictures in {pictures[0].parent}: {seen}.")


def _files(folder: Path, suffix: str) -> dict[str, Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == suffix and not path.name.startswith("."))
    return {path.stem: path for path in found}


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
