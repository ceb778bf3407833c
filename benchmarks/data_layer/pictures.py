"""Images: batches of 32, reduced from 640x480 to 320x240 by averaging, from JPEG files and from raw pixels."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_layer.sizes import PICTURE
from benchmarks.data_layer.system import Epochs, System
from hasten.data import DecodeImages, Stream
from hasten.data.pictures import decode
from hasten.data.resizing import reduced

BATCH = 32
SMALL = (PICTURE[1] // 2, PICTURE[0] // 2)
WORKERS = 2


def _reduced(batch: Any) -> Any:
    return torch.from_numpy(np.stack([reduced(pixels, 2) for pixels in batch["image"]]))


def ours(folder: Path, scale: Literal[1, 2] = 1) -> Stream:
    """Return a stream over the files' bytes, decoded by two threads."""
    decoded = DecodeImages("image", size=SMALL, scale=scale)
    return Stream(
        folder / "store",
        batch_size=BATCH,
        columns=["image"],
        workers=WORKERS,
        transform=lambda batch: decoded(batch)["image"],
    )


def ours_raw(folder: Path) -> Stream:
    """Return a stream over raw pixels, reduced by two threads."""
    return Stream(folder / "store", batch_size=BATCH, views=["image"], workers=WORKERS, transform=_reduced)


def ours_converted(folder: Path) -> Stream:
    """Return a stream over images that were decoded and reduced once, during conversion."""
    return Stream(folder / "small", batch_size=BATCH, form="torch", transform=itemgetter("image"))


def by_pillow(data: bytes) -> Any:
    """Decode and reduce a JPEG file with Pillow, as most training scripts do."""
    from PIL import Image  # noqa: PLC0415  of the extra `images`

    with Image.open(io.BytesIO(data)) as opened:
        return torch.from_numpy(np.array(opened.convert("RGB").reduce(2)))


def by_simplejpeg(data: bytes) -> Any:
    """Decode and reduce a JPEG file with the functions that Hasten's transform calls."""
    return torch.from_numpy(decode(data, SMALL))


class _Files(Dataset[Any]):
    def __init__(self, folder: Path, make: Callable[[bytes], Any]) -> None:
        self._files, self._make = sorted((folder / "jpeg").glob("*.jpg")), make

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return self._make(self._files[index].read_bytes())


class _Pixels(Dataset[Any]):
    """Pixels of a memory-mapped array, reduced with Pillow's `reduce`."""

    def __init__(self, folder: Path) -> None:
        self._pixels = np.load(folder / "pictures.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image  # noqa: PLC0415  as above

        return torch.from_numpy(np.array(Image.fromarray(np.asarray(self._pixels[index])).reduce(2)))


class _PixelsByNumPy(_Pixels):
    """Pixels of a memory-mapped array, reduced with the function that Hasten's transform calls."""

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(reduced(np.asarray(self._pixels[index]), 2))


def decoder_alone(folder: Path) -> Epochs:
    """Decode files already in memory with two threads: the lower limit of any loader for the same pixels."""
    files = [path.read_bytes() for path in sorted((folder / "jpeg").glob("*.jpg"))]

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(len(files)).tolist()
        with ThreadPoolExecutor(WORKERS) as pool:
            for start in range(0, len(order), BATCH):
                chosen = [files[index] for index in order[start : start + BATCH]]
                yield torch.from_numpy(np.stack(list(pool.map(partial(decode, size=SMALL), chosen))))

    return Epochs(epoch)


def _loader(dataset: Dataset[Any]) -> Iterable[Any]:
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def files(folder: Path, make: Callable[[bytes], Any]) -> Iterable[Any]:
    """Return a DataLoader with two worker processes over JPEG files."""
    return _loader(_Files(folder, make))


def webdataset(folder: Path) -> Iterable[Any]:
    """Return WebDataset with two worker processes."""
    import webdataset as package  # noqa: PLC0415  a rival, where it is installed

    shards = [str(path) for path in sorted((folder / "webdataset").glob("*.tar"))]
    dataset = package.WebDataset(shards, shardshuffle=len(shards)).shuffle(2000).to_tuple("jpg").map(_first)
    batched = dataset.batched(BATCH, collation_fn=torch.stack)
    loader: Iterable[Any] = package.WebLoader(batched, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return loader


def _first(row: Any) -> Any:
    return by_pillow(row[0])


JPEG_SYSTEMS: dict[str, System] = {
    "Hasten": System(open=ours, files=("store",)),
    "Hasten, decoded at half size": System(open=partial(ours, scale=2), files=("store",), own_samples=True),
    "Hasten, converted": System(open=ours_converted, files=("small",)),
    "the decoder alone, 2 threads": System(open=decoder_alone, files=("jpeg",), against="Hasten", reference=True),
    "DataLoader, 2 workers": System(open=partial(files, make=by_pillow), files=("jpeg",), against="Hasten"),
    "DataLoader, 2 workers, our decoder": System(open=partial(files, make=by_simplejpeg), files=("jpeg",), against="Hasten"),
    "WebDataset, 2 workers": System(
        open=webdataset, files=("webdataset",), shuffle="buffer", against="Hasten", needs="webdataset"
    ),
}
RAW_SYSTEMS: dict[str, System] = {
    "Hasten": System(open=ours_raw, files=("store",)),
    "Hasten, converted": System(open=ours_converted, files=("small",)),
    "DataLoader, 2 workers": System(open=lambda at: _loader(_Pixels(at)), files=("pictures.npy",), against="Hasten"),
    "DataLoader, 2 workers, our filter": System(
        open=lambda at: _loader(_PixelsByNumPy(at)), files=("pictures.npy",), against="Hasten"
    ),
}
