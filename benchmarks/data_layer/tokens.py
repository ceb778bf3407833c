"""Tokens: batches of 256 windows of 1,024, as tensors of the type that is stored, in another order each epoch."""

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
    """A stream."""
    return Stream(
        folder / "store", batch_size=BATCH, length=WINDOW, columns=["tokens"], form="torch",
        transform=itemgetter("tokens"), **settings,
    )  # fmt: skip


class _Windows(Dataset[Any]):
    """Windows of a memory-mapped file, one at a time, as most training scripts have it."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self.tokens) // WINDOW

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(self.tokens[index * WINDOW : (index + 1) * WINDOW]))


class _ManyWindows(_Windows):
    """The same, several at once (`__getitems__`), in one piece: a loader has nothing left to collate then."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.tokens[: len(self) * WINDOW].reshape(-1, WINDOW)[np.array(indices)])


class _SelectedWindows(_Windows):
    """The same by torch, whose threads copy side by side. No documentation has it; nothing that a loader takes is faster."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._table = torch.from_numpy(np.memmap(path, np.uint16, "c")[: len(self) * WINDOW]).view(-1, WINDOW)

    def __getitems__(self, indices: list[int]) -> Any:
        return self._table.index_select(0, torch.tensor(indices))


class _ListedWindows(_ManyWindows):
    """The same as a list of samples, as the documentation of `__getitems__` has it."""

    def __getitems__(self, indices: list[int]) -> Any:
        return list(super().__getitems__(indices))


def loader(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """A DataLoader over a memory-mapped file."""
    windows = _Windows(folder / "tokens.bin")
    return DataLoader(windows, batch_size=BATCH, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0)


def loader_listed(folder: Path) -> Iterable[Any]:
    """The same with `__getitems__`, whose samples the loader collates."""
    return DataLoader(_ListedWindows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True)


def loader_many(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """The same with `__getitems__`, whose batch is not taken apart again."""
    windows = _ManyWindows(folder / "tokens.bin")
    return DataLoader(
        windows, batch_size=BATCH, shuffle=True, collate_fn=identity, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip


def loader_selected(folder: Path) -> Iterable[Any]:
    """The same, copied by torch."""
    return DataLoader(_SelectedWindows(folder / "tokens.bin"), batch_size=BATCH, shuffle=True, collate_fn=identity)


def by_hand(folder: Path) -> Epochs:
    """NumPy alone: no loader could do less."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    table = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    return Epochs(lambda: (torch.from_numpy(table[np.array(indices)]) for indices in shuffled(len(table))))


def litdata(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """LitData's loader of tokens."""
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
