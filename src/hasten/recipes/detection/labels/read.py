"""Read a folder of images and their labels in any supported format, and collect all problems.

Images are checked by their headers and ends, several in parallel, and labels by their text. Files that look intact are not
decoded. The result has the same form for every format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from hasten.core.errors import DataError, MachineError
from hasten.recipes.detection.labels.coco import CocoSource
from hasten.recipes.detection.labels.contract import Item, Label, Labelled, Source
from hasten.recipes.detection.labels.voc import VocSource
from hasten.recipes.detection.labels.yolo import YoloSource, is_list_of_classes
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.pictures import check_picture, list_pictures

_THREADS = 8
"""Number of threads; most of the time is spent waiting for the disk."""
_NO_LABEL = "none of its labels can be read"
_MOST_CUT = 0.25
"""Fraction of boxes beyond the image from which all labels are doubted."""
_FEW = 10
"""Number of boxes beyond the image that is accepted in any case."""


def read_labels(
    images: Path,
    labels: Path,
    findings: Findings,
    *,
    classes: Sequence[str] | None = None,
    max_bad_frac: float = 0.1,
    rows: str | None = None,
    encoding: str | None = None,
    told: Callable[[int, int], None] | None = None,
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
        rows: Kind of the rows of YOLO text; see `yolo_rows`. None decides by all rows.
        encoding: Encoding of label files that are not UTF-8.
        told: Called with the number of images checked so far, and the number of all.

    Returns:
        The usable images, without those of which no label can be read. An image without labels is one without objects if its
        format can express that: an empty or missing file for YOLO, no `object` for VOC, no annotation for COCO.

    Raises:
        DataError: A folder is missing or empty, the format is unclear, the class list is invalid, or too much is bad.
        MachineError: Pillow is not installed.
    """
    images, labels = Path(images), Path(labels)
    image_paths = list_pictures(images)
    source = _source(labels, image_paths, rows, encoding)

    read = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for done, result in enumerate(pool.map(partial(_read_one, source), image_paths), start=1):
            read.append(result)
            if told is not None:
                told(done, len(image_paths))
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
    new_findings.understood.append(source.understood)
    new_findings.num_images = len(image_paths)
    _check_cut([label for some, _ in read for label in some or ()], labels, is_given=rows is not None)
    findings.take(new_findings)
    new_findings.check(max_bad_frac)  # only the findings of this folder, not those already in `findings`
    if not any(some for some, _ in read):
        raise DataError(f"{labels} labels no object in any image of {images}: there is nothing to train on.")
    return Labelled(names, tuple(items))


def _read_one(source: Source, image_path: Path) -> tuple[list[Label] | None, Findings]:
    """Return the labels of one image, and its problems; None instead of labels if the image cannot be used."""
    problems = Findings()
    try:
        size = check_picture(image_path)
        found = source.labels_of(image_path, size, problems)
    except BadFileError as error:
        problems.add_error(error, lost="picture", about=image_path)
        return None, problems
    except MachineError:
        raise
    except Exception as error:  # noqa: BLE001 - one file never ends the reading
        reason = f"it cannot be read ({type(error).__name__}: {str(error)[:200]})"
        problems.add(image_path, None, reason, lost="picture")
        return None, problems
    if problems.counts()["label"] and not found:  # otherwise it would count as an image without objects
        problems.add(source.place_of(image_path), None, _NO_LABEL, lost="picture", about=image_path)
        return None, problems
    return found, problems


def _item(image_path: Path, place: Path, labels: list[Label], index: dict[str, int], findings: Findings) -> Item:
    """Build the item of one image from its labels, without unknown classes and duplicates."""
    kept: dict[Label, int] = {}
    for label in labels:
        identity = label._replace(line=None)
        if label.name not in index:
            reason = f"class {label.name!r} is unknown: the classes are {_some(list(index))}"
            findings.add(place, label.line, reason, lost="label", about=image_path)
        elif identity in kept:
            findings.add(place, label.line, "it repeats an earlier label, and counts once", lost="nothing", about=image_path)
        else:
            if label.is_cut:
                findings.add(
                    place, label.line, "its box reaches beyond the image, and is cut", lost="nothing", about=image_path
                )
            kept[identity] = index[label.name]
    boxes = np.array([label.box for label in kept], np.float32).reshape(-1, 4)
    return Item(image_path, boxes, np.fromiter(kept.values(), np.int64, len(kept)))


def _check_cut(labels: list[Label], place: Path, *, is_given: bool) -> None:
    """Refuse labels of which most boxes reach beyond their image: they are corners read as widths, or of another unit."""
    num_cut = sum(label.is_cut for label in labels)
    if num_cut > max(_MOST_CUT * len(labels), _FEW) and not is_given:
        raise DataError(
            f"{place}: {num_cut} of {len(labels)} boxes reach beyond their image. YOLO text has center, width and height "
            f"as fractions, COCO the upper left corner, width and height in pixels, VOC two corners in pixels: convert the "
            f"labels. If they are right as they are, give --rows box."
        )


def _source(labels: Path, image_paths: list[Path], rows: str | None, encoding: str | None) -> Source:
    """Detect the format of the labels from the file names."""
    if labels.is_file():
        if labels.suffix.lower() != ".json":
            raise DataError(f"{labels} is not a COCO JSON file: give one, or a folder of YOLO text or VOC XML files.")
        return CocoSource(labels, image_paths, encoding)
    if not labels.is_dir():
        raise DataError(f"{labels} does not exist: give the folder of the labels, or a COCO JSON file.")
    stems = {image_path.stem for image_path in image_paths}
    texts, markups, jsons = _files(labels, ".txt"), _files(labels, ".xml"), _files(labels, ".json")
    texts = {stem: path for stem, path in texts.items() if stem in stems or not is_list_of_classes(path)}
    jsons = {stem: path for stem, path in jsons.items() if not is_list_of_classes(path)}
    has_texts, has_markups = bool(stems & texts.keys()), bool(stems & markups.keys())
    if has_texts and has_markups:
        raise DataError(f"{labels} has YOLO text and VOC XML for these images: give a folder with only one of them.")
    if has_texts:
        return YoloSource(labels, texts, image_paths, rows=rows, encoding=encoding)
    if has_markups:
        return VocSource(labels, markups, image_paths, encoding)
    if len(jsons) == 1:
        return CocoSource(next(iter(jsons.values())), image_paths, encoding)
    raise DataError(_why_no_labels(labels, image_paths, jsons, f"{len(texts)} .txt and {len(markups)} .xml files"))


def _why_no_labels(labels: Path, image_paths: list[Path], jsons: dict[str, Path], counts: str) -> str:
    """Return why a folder has no labels that can be read."""
    if len({image_path.stem for image_path in image_paths} & jsons.keys()) > 1:
        return f"{labels} has one JSON file for each image, as LabelMe writes them: convert them to COCO JSON or YOLO text."
    if jsons:
        return f"{labels} has several JSON files ({_some(sorted(path.name for path in jsons.values()))}): choose one."
    inner = sorted(path.name for path in labels.iterdir() if path.is_dir() and not path.name.startswith("."))
    hint = f" It has subfolders ({_some(inner)}): give one of them." if inner else ""
    counts = f"{counts}, none named like an image (such as {image_paths[0].stem}.txt)"
    return f"{labels} has no labels of the images in {image_paths[0].parent}: it has {counts}.{hint}"


def _files(folder: Path, suffix: str) -> dict[str, Path]:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == suffix and not path.name.startswith("."))
    return {path.stem: path for path in paths}


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
