"""Read folders of images, stored as the bytes of their files, or decoded and resized during conversion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices, FileFolder, Rows, Unit, file_bytes, folder_of, parts_of, spread
from hasten.data.convert.reasons import reason_of
from hasten.data.pictures import ENDINGS, check, decode, has_frames

_ANIMATED = (".avif", ".gif", ".png", ".tif", ".tiff", ".webp")
_LOOKED_AT = 500
"""Maximum number of files that are searched for several frames."""


class Images(FileFolder):
    """Read images, one row per file: `path`, `label` (name of the folder), `image`, `height` and `width`."""

    name: ClassVar[str] = "images"
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    words: ClassVar[str] = "a folder of images, optionally with one subfolder per class (.jpg, .png, .webp, .tif, ...)"
    needs: ClassVar[str] = "PIL"

    @classmethod
    def remarks(cls, units: Sequence[Unit], choices: Choices) -> list[str]:
        """Say if there are files with several frames, looking at some if there are many."""
        files = [Path(unit.path) / name for unit in units for name in unit.files if name.lower().endswith(_ANIMATED)]
        animated = [file.name for file in spread(files, _LOOKED_AT) if _is_animated(file)] if files else []
        return [f"read the first frame only of files with several, such as {animated[0]}"] if animated else []

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[Rows | Bad]:
        """Return the images of some files. Images that are damaged, truncated or too large are bad."""
        shapes: set[tuple[int, ...]] = set()
        for part in parts_of(cls._rows(unit, choices)):
            yield part if isinstance(part, Bad) else _table(part, choices, shapes)

    @classmethod
    def _rows(cls, unit: Unit, choices: Choices) -> Iterator[tuple[int, tuple[Any, ...]] | Bad]:
        for name in unit.files:
            try:
                image: Any = file_bytes(Path(unit.path) / name)
                if choices.pixels == "decoded":
                    image = decode(image, choices.size)
                    height, width = image.shape[:2]
                else:
                    height, width = check(image)
            except Exception as error:  # noqa: BLE001  if one file fails, the others can be read
                yield Bad(name, "the file", reason_of(error))
                continue
            num_bytes = image.nbytes if choices.pixels == "decoded" else len(image)
            yield num_bytes, (name, folder_of(name), image, height, width)


def _table(rows: Sequence[tuple[Any, ...]], choices: Choices, shapes: set[tuple[int, ...]]) -> Rows:
    """Return images as columns. `shapes` holds those of earlier decoded ones."""
    paths, labels, images, heights, widths = zip(*rows, strict=True)
    columns: dict[str, Any] = {
        "path": pa.array(paths, pa.string()),
        "label": pa.array(labels, pa.string()),
        "height": pa.array(heights, pa.int32()),
        "width": pa.array(widths, pa.int32()),
    }
    if choices.pixels == "decoded":
        shapes |= {image.shape for image in images}
        if len(shapes) > 1:
            raise DataError(
                f"the images have different sizes ({sorted(shapes)[:3]} ...): set one (--size 320x240), or store their "
                f"bytes."
            )
        columns["image"] = np.stack(images)
    else:
        columns["image"] = pa.array(images, pa.large_binary())
    return {name: values for name, values in columns.items() if not choices.columns or name in choices.columns}


def _is_animated(file: Path) -> bool:
    try:
        return has_frames(file.read_bytes())
    except (OSError, ValueError):  # bad when it is converted
        return False
