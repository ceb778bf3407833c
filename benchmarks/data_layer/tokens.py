"""Tokens: batches of 256 windows of 1,024, as tensors of the type that is stored, in another order each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_layer.sizes import WINDOW
from benchmarks.data_layer.system import System, identity
from benchmarks.data_layer.text import ALL_BLOCKS, BATCH
from upshift.data import Stream


def ours(folder: Path, **settings: Any) -> Iterator[Any]:
    """A stream."""
    for batch in Stream(folder / "store", batch_size=BATCH, length=WINDOW, columns=["tokens"], form="torch", **settings):
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

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.tokens[: len(self) * WINDOW].reshape(-1, WINDOW)[np.array(indices)])


def loader(folder: Path, num_workers: int = 0) -> Iterator[Any]:
    """A DataLoader over a memory-mapped file."""
    yield from DataLoader(_Windows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True, num_workers=num_workers)


def loader_many(folder: Path, num_workers: int = 0) -> Iterator[Any]:
    """The same with `__getitems__`, whose batch is not taken apart again."""
    windows = _ManyWindows(folder / "tokens.bin")
    yield from DataLoader(windows, batch_size=BATCH, shuffle=True, collate_fn=identity, num_workers=num_workers)


def by_hand(folder: Path) -> Iterator[Any]:
    """NumPy alone: no loader could do less."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    table = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    order = np.random.default_rng().permutation(len(table))
    for start in range(0, len(order), BATCH):
        yield torch.from_numpy(table[order[start : start + BATCH]])


def litdata(folder: Path, num_workers: int = 0) -> Iterator[Any]:
    """LitData's loader of tokens."""
    import litdata as package  # noqa: PLC0415  a rival, where it is installed

    items = package.TokensLoader(block_size=WINDOW)
    dataset = package.StreamingDataset(str(folder / "litdata"), item_loader=items, shuffle=True, drop_last=False)
    yield from package.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers)


_FLAT, _LITDATA = ("tokens.bin",), ("litdata",)
SYSTEMS: dict[str, System] = {
    "Upshift": System(epoch=ours, files=("store",), shuffle="window"),
    "Upshift, all mixed": System(epoch=lambda at: ours(at, window_blocks=ALL_BLOCKS), files=("store",)),
    "NumPy by hand": System(epoch=by_hand, files=_FLAT, against="Upshift, all mixed", reference=True),
    "DataLoader": System(epoch=loader, files=_FLAT, against="Upshift, all mixed"),
    "DataLoader, 2 workers": System(epoch=lambda at: loader(at, 2), files=_FLAT, against="Upshift, all mixed"),
    "DataLoader, __getitems__": System(epoch=loader_many, files=_FLAT, against="Upshift, all mixed"),
    "DataLoader, __getitems__, 2 workers": System(
        epoch=lambda at: loader_many(at, 2), files=_FLAT, against="Upshift, all mixed"
    ),
    "LitData": System(epoch=litdata, files=_LITDATA, shuffle="chunks", against="Upshift", needs="litdata"),
    "LitData, 2 workers": System(
        epoch=lambda at: litdata(at, 2), files=_LITDATA, shuffle="chunks", against="Upshift", needs="litdata"
    ),
}
