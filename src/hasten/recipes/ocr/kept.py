"""Held-out pictures with their targets, made once: every further pass reads them from memory-mapped files.

Held-out pictures never change, so neither do their targets. Both are kept under keys that say all they depend on (the file
and when it was written, its polygons, the size, the settings of the maps, the code that makes them), in a temporary folder
that goes with the process, or under HASTEN_CACHE_DIR, where the next run and other processes find them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from hasten.core.records import decode, encode
from hasten.core.sample_folder import FOLDER_VARIABLE
from hasten.data.cache.keys import key_of
from hasten.data.cache.mapped import MappedCache
from hasten.recipes.ocr.data import DecodedData, Ignored, OcrData, Offsets, Points, RawSample, Sample, polygons_of, prepared
from hasten.recipes.ocr.maps import MapSettings
from hasten.recipes.ocr.maps.store import MapCache, content_of, map_key
from hasten.recipes.pictures import Picture

Targets: TypeAlias = "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]"
"""The shrunk texts and where they count, each `uint8 [height, width]`, and the milliseconds it took to have them."""
Masks: TypeAlias = "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]"
HeldSample: TypeAlias = "tuple[Picture, Points, Offsets, Ignored, Targets | None]"
"""A canonical picture, its polygons, and its targets where they are at hand."""

MAX_BYTES = 16 * 2**30
"""What pictures, and what targets, may take on disk each; when it is full, the rest is made anew at each pass."""
NEAR_BYTES = 512 * 2**20
"""What a process keeps in its memory of them, so that they are not looked up and unpacked at each pass."""


class HeldData(Dataset[HeldSample]):
    """Held-out pictures decoded anew at every pass, without targets.

    Args:
        data: The raw samples.
        size: Height and width of the canonical pictures.
    """

    def __init__(self, data: OcrData, size: tuple[int, int]) -> None:
        self._data = DecodedData(data, size)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> HeldSample:
        return (*self._data[index], None)


class KeptData(Dataset[HeldSample]):
    """Held-out pictures and their targets, kept: the first ones in memory, all of them on disk.

    Of those in memory it is not asked again whether their files have changed.

    Args:
        data: The raw samples.
        size: Height and width of the canonical pictures.
        settings: How targets are made.
        folder: Where both are kept; None for HASTEN_CACHE_DIR, or a temporary folder without it.

    Raises:
        DataError: The folder cannot be made.
    """

    def __init__(self, data: OcrData, size: tuple[int, int], settings: MapSettings, folder: Path | None = None) -> None:
        self._data, self._size, self._settings = data, size, settings
        place = folder or _folder(os.environ.get(FOLDER_VARIABLE, ""))
        self.pictures = MappedCache(place / "pictures", MAX_BYTES)
        self.targets = MapCache(place / "targets", MAX_BYTES)
        self._near: dict[int, tuple[Sample, Masks]] = {}
        self._room = NEAR_BYTES

    def __getstate__(self) -> dict[str, Any]:
        """A worker process keeps its own in memory; nothing of this one's is sent to it."""
        return {**vars(self), "_near": {}, "_room": NEAR_BYTES}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> HeldSample:
        start = time.perf_counter()
        near = self._near.get(index)
        if near is None:
            sample = self._canonical(self._data[index])
            start = time.perf_counter()
            masks = self._masks(index, sample)
            self._remember(index, sample, masks)
        else:
            sample, masks = near
        return (*sample, (*masks, 1e3 * (time.perf_counter() - start)))

    def _masks(self, index: int, sample: Sample) -> Masks:
        polygons = polygons_of(*sample[1:])
        key = map_key(self._data[index][0], content_of(polygons), "canonical", self._size, self._settings)
        maps = self.targets.get_or_make(key, polygons, self._size, self._settings)
        return maps.shrink, maps.shrink_mask

    def _remember(self, index: int, sample: Sample, masks: Masks) -> None:
        size = sum(part.nbytes for part in (*sample, *masks))
        if size <= self._room:
            self._near[index] = sample, masks
            self._room -= size

    def _canonical(self, raw: RawSample) -> Sample:
        path, points, offsets, ignored = raw
        written = os.stat(path) if os.path.exists(path) else None  # noqa: PTH110, PTH116  per sample: no Path is made
        stamp = None if written is None else (written.st_mtime_ns, written.st_size)
        key = key_of("ocr picture", 1, path, stamp, points, offsets, ignored, self._size)
        (kept,) = self.pictures.read([key])
        if kept is not None:
            sample: Sample = decode(bytearray(kept))
            return sample
        sample = prepared(raw, self._size)
        self.pictures.write({key: encode(sample)})
        return sample


@lru_cache(maxsize=4)
def _folder(kept: str) -> Path:
    """The folder of this process, the same at each call."""
    if kept:
        return Path(kept).expanduser() / "ocr"
    folder, owner = Path(tempfile.mkdtemp(prefix="hasten-ocr-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a fork of it ends
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
