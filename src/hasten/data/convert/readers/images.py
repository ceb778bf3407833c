"""Read folders of images, stored as the bytes of their files, or decoded and resized during conversion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, FileFolder, Rows, Unit, folder_of
from hasten.data.pictures import decode, header

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_PART_FILES = 64


class Images(FileFolder):
    """Read images, one row per file: `path`, `label` (name of the folder), `image`, `height` and `width`."""

    name: ClassVar[str] = "images"
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    words: ClassVar[str] = "a folder of images, optionally with one subfolder per class (.jpg, .png, ...)"
    needs: ClassVar[str] = "PIL"

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the images of some files. Images that cannot be decoded are bad."""
        for start in range(0, len(unit.files), _PART_FILES):
            rows: dict[str, list[Any]] = {"path": [], "label": [], "image": [], "height": [], "width": []}
            for name in unit.files[start : start + _PART_FILES]:
                try:
                    data = (Path(unit.path) / name).read_bytes()
                    image: Any = data
                    if choices.pixels == "decoded":
                        image = decode(data, choices.size)
                        height, width = image.shape[:2]
                    else:
                        height, width = header(data)
                except (OSError, ValueError) as error:
                    yield Bad(name, "the file", str(error) or type(error).__name__)
                    continue
                label = folder_of(name)
                for column, value in zip(rows, (name, label, image, height, width), strict=True):
                    rows[column].append(value)
            if rows["path"]:
                yield _table(rows, choices)


def _table(rows: dict[str, list[Any]], choices: Choices) -> Rows:
    columns: dict[str, Any] = {
        "path": pa.array(rows["path"], pa.string()),
        "label": pa.array(rows["label"], pa.string()),
        "height": pa.array(rows["height"], pa.int32()),
        "width": pa.array(rows["width"], pa.int32()),
    }
    if choices.pixels == "decoded":
        shapes = {image.shape for image in rows["image"]}
        if len(shapes) > 1:
            raise DataError(
                f"the images have different sizes ({sorted(shapes)[:3]} ...): set one (--size 320x240), or store their "
                f"bytes."
            )
        columns["image"] = np.stack(rows["image"])
    else:
        columns["image"] = pa.array(rows["image"], pa.large_binary())
    return {name: values for name, values in columns.items() if not choices.columns or name in choices.columns}
