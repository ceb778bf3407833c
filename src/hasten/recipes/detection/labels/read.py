"""Read a folder of images and their labels in any supported format, and collect all problems.

Images are checked by their headers and ends, several in parallel, and labels by their text. Files that look intact are not
decoded. The result has the same form for every format.
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
"""Number of threads; most of the time is spent waiting for the disk."""


def read_labels(
    images: Path,
    labels: Path,
    findings: Findings,
    *,
    classes: Sequence[str] | None = None,
    max_bad_frac: float = 0.1,
) -> Labelled:
    """Read images and their labels.

    Args:
        images: Folder of the images.
        labels: Folder of YOLO text files or VOC XML files named like the images, or a COCO JSON file or the folder that
            contains one. May be the image folder.
        findings: Receives everything that cannot be used.
        classes: Class names in order. None uses those of the labels: the accompanying list (`classes.txt`, `obj.names`,
            `data.yaml`, `classes.json`; COCO's categories), or the sorted names of all labels (VOC), or numbers (YOLO).
        max_bad_frac: Largest fraction of images that may have problems; 1 accepts all.

    Returns:
        The usable images. An image without labels is one without objects if its format can express that: an empty or missing
        file for YOLO, no `object` for VOC, no annotation for COCO.

    Raises:
        DataError: A folder is missing or empty, the format is unclear, the class list is invalid, or too much is bad.
        MachineError: Pillow is not installed.
    """
    images, labels = Path(images), Path(labels)
    image_paths = list_pictures(images)
    source = _source(labels, image_paths)

    def read_one(image_path: Path) -> tuple[list[Label] | None, Findings]:
        problems = Findings()
        try:
            size = check_picture(image_path)
            return source.labels_of(image_path, size, problems), problems
        except BadFileError as error:
            problems.add_error(error, lost="picture", about=image_path)
            return None, problems

    with ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(read_one, image_paths))
    names = tuple(classes) if classes is not None else source.classes
    if names is None:
        names = tuple(sorted({label.name for some, _ in read for label in some or ()}))
    index = {name: number for number, name in enumerate(names)}
    if len(index) != len(names):
        raise DataError(f"Two of the classes {', '.join(names)} have the same name: use unique names.")
    items, new_findings = [], Findings()
    for image_path, (some, problems) in zip(image_paths, read, strict=True):
        new_findings.take(problems)
        if some is not None:
            items.append(_item(image_path, source.place_of(image_path), some, index, new_findings))
    source.finish(new_findings)
    findings.take(new_findings)
    new_findings.check(len(image_paths), max_bad_frac)  # only the findings of this folder, not those already in `findings`
    if not names:
        raise DataError(f"{labels} labels no object in any image of {images}: there is nothing to train on.")
    return Labelled(names, tuple(items))


def _item(image_path: Path, place: Path, labels: list[Label], index: dict[str, int], findings: Findings) -> Item:
    """Build the item of one image from its labels, without unknown classes and duplicates."""
    kept: dict[Label, int] = {}
    for label in labels:
        identity = label._replace(line=None)
        if label.name not in index:
            reason = f"class {label.name!r} is unknown: the classes are {_some(list(index))}"
            findings.add(place, label.line, reason, lost="label", about=image_path)
        elif identity in kept:
            findings.add(place, label.line, "it repeats an earlier label", lost="label", about=image_path)
        else:
            kept[identity] = index[label.name]
    boxes = np.array([label.box for label in kept], np.float32).reshape(-1, 4)
    return Item(image_path, boxes, np.fromiter(kept.values(), np.int64, len(kept)))


def _source(labels: Path, image_paths: list[Path]) -> Source:
    """Detect the format of the labels from the file names."""
    if labels.is_file():
        if labels.suffix.lower() != ".json":
            raise DataError(f"{labels} is not a COCO JSON file: give one, or a folder of YOLO text or VOC XML files.")
        return CocoSource(labels, image_paths)
    if not labels.is_dir():
        raise DataError(f"{labels} does not exist: give the folder of the labels, or a COCO JSON file.")
    stems = {image_path.stem for image_path in image_paths}
    texts, markups, jsons = _files(labels, ".txt"), _files(labels, ".xml"), _files(labels, ".json")
    texts = {stem: path for stem, path in texts.items() if stem in stems or not is_list_of_classes(path)}
    jsons = {stem: path for stem, path in jsons.items() if not is_list_of_classes(path)}
    sources: dict[str, Callable[[], Source]] = {}
    if stems & texts.keys():
        sources["YOLO text"] = lambda: YoloSource(labels, texts, image_paths)
    if stems & markups.keys():
        sources["VOC XML"] = lambda: VocSource(labels, markups, image_paths)
    if not sources and len(jsons) == 1:
        return CocoSource(next(iter(jsons.values())), image_paths)
    if len(sources) == 1:
        return next(iter(sources.values()))()
    if sources:
        raise DataError(f"{labels} has {' and '.join(sources)} for these images: give a folder with only one of them.")
    if jsons:
        raise DataError(f"{labels} has several JSON files ({_some(sorted(p.name for p in jsons.values()))}): choose one.")
    counts = f"{len(texts)} .txt and {len(markups)} .xml files, none named like an image (such as {image_paths[0].stem}.txt)"
    raise DataError(f"{labels} has no labels of the images in {image_paths[0].parent}: it has {counts}.")


def _files(folder: Path, suffix: str) -> dict[str, Path]:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == suffix and not path.name.startswith("."))
    return {path.stem: path for path in paths}


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
