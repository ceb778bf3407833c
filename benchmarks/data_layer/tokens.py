"""Tokens: batches of 256 windows of 1,024, as tensors of the stored type, in a different order each epoch."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_layer.sizes import WINDOW
from benchmarks.data_layer.system import Epochs, System, identity
from benchmarks.data_layer.text import ALL_BLOCKS, BATCH, shuffled
from hasten.data import Stream


def ours(folder: Path, **settings: Any) -> Stream:
    """Return a stream."""
    return Stream(
        folder / "store", batch_size=BATCH, length=WINDOW, columns=["tokens"], form="torch",
        transform=itemgetter("tokens"), **settings,
    )  # fmt: skip


class _Windows(Dataset[Any]):
    """Windows of a memory-mapped file, one at a time, as in most training scripts."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self.tokens) // WINDOW

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(self.tokens[index * WINDOW : (index + 1) * WINDOW]))


class _ManyWindows(_Windows):
    """Windows read several at once (`__getitems__`) into one array, so that the loader has nothing to collate."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.tokens[: len(self) * WINDOW].reshape(-1, WINDOW)[np.array(indices)])


class _SelectedWindows(_Windows):
    """Windows read by torch, whose threads copy in parallel. This is undocumented, and the fastest input for a loader."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._table = torch.from_numpy(np.memmap(path, np.uint16, "c")[: len(self) * WINDOW]).view(-1, WINDOW)

    def __getitems__(self, indices: list[int]) -> Any:
        return self._table.index_select(0, torch.tensor(indices))


class _ListedWindows(_ManyWindows):
    """Windows read several at once as a list of samples, following the documentation of `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> Any:
        return list(super().__getitems__(indices))


def loader(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """Return a DataLoader over a memory-mapped file."""
    windows = _Windows(folder / "tokens.bin")
    return DataLoader(windows, batch_size=BATCH, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0)


def loader_listed(folder: Path) -> Iterable[Any]:
    """Return a DataLoader with `__getitems__` that collates the samples."""
    return DataLoader(_ListedWindows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True)


def loader_many(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """Return a DataLoader with `__getitems__` whose batch is not split again."""
    windows = _ManyWindows(folder / "tokens.bin")
    return DataLoader(
        windows, batch_size=BATCH, shuffle=True, collate_fn=identity, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip


def loader_selected(folder: Path) -> Iterable[Any]:
    """Return a DataLoader whose batches are copied by torch."""
    return DataLoader(_SelectedWindows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True, collate_fn=identity)


def by_hand(folder: Path) -> Epochs:
    """Yield batches with NumPy alone: the lower limit of any loader."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    table = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    return Epochs(lambda: (torch.from_numpy(table[np.array(indices)]) for indices in shuffled(len(table))))


def litdata(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """Return LitData's token loader."""
    import litdata as package  # noqa: PLC0415  a rival, where it is installed

    items = package.TokensLoader(block_size=WINDOW)
    dataset = package.StreamingDataset(str(folder / "litdata"), item_loader=items, shuffle=True, drop_last=False)
    batches: Iterable[Any] = package.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    return batches


_FLAT, _LITDATA = ("tokens.bin",), ("litdata",)
SYSTEMS: dict[str, System] = {
    "Hasten": System(open=ours, files=("store",), shuffle="window"),
    "Hasten, all mixed": System(open=lambda at: ours(at, window_blocks=ALL_BLOCKS), files=("store",)),
    "Hasten, all mixed, 2 threads": System(open=lambda at: ours(at, window_blocks=ALL_BLOCKS, workers=2), files=("store",)),
    "NumPy by hand": System(open=by_hand, files=_FLAT, against="Hasten, all mixed", reference=True),
    "DataLoader": System(open=loader, files=_FLAT, against="Hasten, all mixed"),
    "DataLoader, 2 workers": System(open=lambda at: loader(at, 2), files=_FLAT, against="Hasten, all mixed"),
    "DataLoader, listed __getitems__": System(open=loader_listed, files=_FLAT, against="Hasten, all mixed"),
    "DataLoader, __getitems__": System(open=loader_many, files=_FLAT, against="Hasten, all mixed"),
    "DataLoader, __getitems__ by torch": System(open=loader_selected, files=_FLAT, against="Hasten, all mixed"),
    "DataLoader, __getitems__, 2 workers": System(
        open=lambda at: loader_many(at, 2), files=_FLAT, against="Hasten, all mixed"
    ),
    "LitData": System(open=litdata, files=_LITDATA, shuffle="chunks", against="Hasten", needs="litdata"),
    "LitData, 2 workers": System(
        open=lambda at: litdata(at, 2), files=_LITDATA, shuffle="chunks", against="Hasten", needs="litdata"
    ),
}
