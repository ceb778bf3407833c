"""All workloads with the systems of each, and the omitted systems with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data_layer import pictures, sources, text, tokens
from benchmarks.data_layer.sizes import Sizes
from benchmarks.data_layer.system import System


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The same samples for several systems.

    Attributes:
        words: Description of a batch.
        write: Creates the data in a folder.
        systems: Systems by name; Hasten first.
    """

    words: str
    write: Callable[[Path, Sizes], None]
    systems: dict[str, System]

    def there(self) -> dict[str, System]:
        """Return the installed systems."""
        return {name: system for name, system in self.systems.items() if system.is_there}


WORKLOADS: dict[str, Workload] = {
    "text": Workload(
        words="256 dialogues of about 1.3 KB, as Python strings or in Arrow",
        write=sources.write_text,
        systems=text.SYSTEMS,
    ),
    "tokens": Workload(
        words="256 windows of 1,024 tokens, as a tensor of uint16", write=sources.write_tokens, systems=tokens.SYSTEMS
    ),
    "jpeg": Workload(
        words="32 JPEG images of 640x480, decoded and halved to 320x240, as a tensor of uint8",
        write=sources.write_pictures,
        systems=pictures.JPEG_SYSTEMS,
    ),
    "raw": Workload(
        words="32 images of 640x480 pixels, halved to 320x240, as a tensor of uint8",
        write=sources.write_raw,
        systems=pictures.RAW_SYSTEMS,
    ),
}

LEFT_OUT: dict[str, str] = {
    "MosaicML Streaming": "it needs torchvision, which no extra of Hasten installs; its folders can be converted",
    "FFCV": "it has no wheels, and does not build with the current OpenCV",
    "Grain and Lance": "not measured yet",
    "TFRecord": "its reader is TensorFlow, a different framework",
}
"""Rivals that are not measured, and why."""

PACKAGES = ("datasets", "litdata", "webdataset", "pyarrow", "pillow", "simplejpeg", "lmdb", "redis")
"""Packages whose versions are recorded."""
