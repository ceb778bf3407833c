"""Each system's best way to one epoch of the same batches, as its own documentation shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_layer.sources import PICTURE, have
from upshift.data import Stream
from upshift.data.convert.pictures import decode

System = Callable[[Path], Iterator[Any]]
BATCH, WINDOW, PICTURES = 256, 1024, 32
SMALL = (PICTURE[1] // 2, PICTURE[0] // 2)


def _identity(batch: Any) -> Any:
    return batch


# Text: batches of 256 strings, shuffled.


def text_upshift(folder: Path) -> Iterator[Any]:
    """Ours, as lists of strings."""
    for batch in Stream(folder / "store", batch_size=BATCH, strings=["text"]):
        yield batch["text"]


def text_upshift_arrow(folder: Path) -> Iterator[Any]:
    """Ours, staying in Arrow; the bytes of each batch are there, copied and whole."""
    for batch in Stream(folder / "store", batch_size=BATCH):
        yield batch["text"]


def text_huggingface(folder: Path) -> Iterator[Any]:
    """Hugging Face datasets, map-style: several rows at once by a batch sampler."""
    from datasets import load_from_disk  # noqa: PLC0415  a rival, where it is installed

    dataset = load_from_disk(str(folder / "huggingface"))
    order = np.random.default_rng(0).permutation(len(dataset))
    for start in range(0, len(order), BATCH):
        yield dataset[order[start : start + BATCH]]["text"]


def text_litdata(folder: Path) -> Iterator[Any]:
    """LitData, in this process."""
    import litdata  # noqa: PLC0415  as above

    dataset = litdata.StreamingDataset(str(folder / "litdata"), shuffle=True)
    yield from litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0, collate_fn=_identity)


def text_webdataset(folder: Path) -> Iterator[Any]:
    """WebDataset, in this process."""
    import webdataset  # noqa: PLC0415  as above

    shards = [str(path) for path in sorted((folder / "webdataset").glob("*.tar"))]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=8)
        .shuffle(2000)
        .decode()
        .to_tuple("txt")
        .batched(BATCH, collation_fn=_identity)
    )
    for batch in dataset:
        yield [row[0] for row in batch]


# Tokens: windows of 1,024, shuffled, as int64 tensors of a batch.


def tokens_upshift(folder: Path) -> Iterator[Any]:
    """Ours."""
    for batch in Stream(folder / "store", batch_size=BATCH, length=WINDOW, columns=["tokens"], form="torch"):
        yield batch["tokens"]


class _Windows(Dataset[Any]):
    """Windows of a memory-mapped file, one at a time, as most training scripts have it."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self.tokens) // WINDOW

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(self.tokens[index * WINDOW : (index + 1) * WINDOW]))


class _ManyWindows(_Windows):
    """The same, several at once (`__getitems__`): the best form a DataLoader has."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        rows = self.tokens[: len(self) * WINDOW].reshape(-1, WINDOW)[np.array(indices)]
        return list(torch.from_numpy(rows))


def tokens_loader(folder: Path) -> Iterator[Any]:
    """A DataLoader over a memory-mapped file."""
    yield from DataLoader(_Windows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True)


def tokens_loader_many(folder: Path) -> Iterator[Any]:
    """The same with `__getitems__`."""
    yield from DataLoader(_ManyWindows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True)


def tokens_litdata(folder: Path) -> Iterator[Any]:
    """LitData's loader of tokens."""
    import litdata  # noqa: PLC0415  a rival, where it is installed

    loader = litdata.TokensLoader(block_size=WINDOW)
    dataset = litdata.StreamingDataset(str(folder / "litdata"), item_loader=loader, shuffle=True)
    yield from litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0)


# Pictures: 640x480 JPEG to 320x240 by a mean over squares, batches of 32 uint8 pictures.


def _decoded(batch: Any) -> Any:
    return torch.from_numpy(np.stack([decode(data, SMALL) for data in batch["image"].to_pylist()]))


def pictures_upshift(folder: Path) -> Iterator[Any]:
    """Ours, from the files' bytes, two threads."""
    yield from Stream(folder / "store", batch_size=PICTURES, columns=["image"], workers=2, transform=_decoded)


def pictures_upshift_cached(folder: Path) -> Iterator[Any]:
    """Ours, decoded and resized once, when the folder was converted."""
    for batch in Stream(folder / "small", batch_size=PICTURES, form="torch"):
        yield batch["image"]


class _Files(Dataset[Any]):
    """JPEG files by Pillow, as most training scripts have it."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted((folder / "jpeg").glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image  # noqa: PLC0415  of the extra `images`

        with Image.open(self.files[index]) as opened:
            return torch.from_numpy(np.array(opened.convert("RGB").reduce(2)))


def pictures_loader(folder: Path) -> Iterator[Any]:
    """A DataLoader with two worker processes."""
    yield from DataLoader(_Files(folder), batch_size=PICTURES, shuffle=True, num_workers=2)


SYSTEMS: dict[str, dict[str, System]] = {
    "text": {
        "upshift": text_upshift,
        "upshift, Arrow": text_upshift_arrow,
        **({"Hugging Face": text_huggingface} if have("datasets") else {}),
        **({"litdata": text_litdata} if have("litdata") else {}),
        **({"webdataset": text_webdataset} if have("webdataset") else {}),
    },
    "tokens": {
        "upshift": tokens_upshift,
        "DataLoader": tokens_loader,
        "DataLoader, __getitems__": tokens_loader_many,
        **({"litdata": tokens_litdata} if have("litdata") else {}),
    },
    "pictures": {
        "upshift": pictures_upshift,
        "upshift, converted": pictures_upshift_cached,
        "DataLoader, 2 workers": pictures_loader,
    },
}
