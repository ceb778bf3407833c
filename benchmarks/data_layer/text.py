"""Text: batches of 256 dialogues, as strings or in Arrow, in a different order each epoch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_layer.system import Epochs, System, identity
from hasten.data import Stream

BATCH = 256
ALL_BLOCKS = 2**30
"""A window of all blocks, so that every sample is mixed with every other."""
_GROUPS = 16
"""Number of row groups mixed with each other; as many rows as a window of the store."""


def ours(folder: Path, **settings: Any) -> Stream:
    """Return a stream."""
    return Stream(folder / "store", batch_size=BATCH, transform=itemgetter("text"), **settings)


def in_memory(folder: Path) -> Epochs:
    """Yield strings already in memory, in random order."""
    rows = pyarrow.parquet.read_table(folder / "talks.parquet")["text"].to_pylist()
    return Epochs(lambda: ([rows[index] for index in indices] for indices in shuffled(len(rows))))


def shuffled(count: int) -> Iterator[list[int]]:
    """Yield the sample indices of each batch, all shuffled together."""
    order = np.random.default_rng().permutation(count)
    for start in range(0, count, BATCH):
        yield order[start : start + BATCH].tolist()


class _Lines(Dataset[str]):
    """Lines of a JSONL file by their offsets, one at a time, as in many training scripts."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._starts = np.cumsum([0, *(len(line) for line in self._file)]).tolist()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        self._file.seek(self._starts[index])
        found: str = json.loads(self._file.readline())["text"]
        return found


def lines(folder: Path) -> Iterable[Any]:
    """Return a DataLoader over the lines of a JSONL file."""
    return DataLoader(_Lines(folder / "talks.jsonl"), batch_size=BATCH, shuffle=True, collate_fn=identity)


def parquet(folder: Path) -> Epochs:
    """Read a few row groups of a Parquet file at a time, with their rows shuffled."""
    file = pyarrow.parquet.ParquetFile(folder / "talks.parquet")

    def epoch() -> Iterator[Any]:
        random = np.random.default_rng()
        groups = random.permutation(file.num_row_groups).tolist()
        for at in range(0, len(groups), _GROUPS):
            column = file.read_row_groups(groups[at : at + _GROUPS])["text"].combine_chunks()
            order = random.permutation(len(column))
            for start in range(0, len(order), BATCH):
                yield column.take(order[start : start + BATCH]).to_pylist()

    return Epochs(epoch)


def huggingface(folder: Path) -> Epochs:
    """Read Hugging Face datasets, map-style, with the rows of a batch in one call, which is its fastest way."""
    dataset = _loaded(folder)
    return Epochs(lambda: (dataset[indices]["text"] for indices in shuffled(len(dataset))))


def _loaded(folder: Path) -> Any:
    from datasets import load_from_disk  # noqa: PLC0415  a rival, where it is installed

    return load_from_disk(str(folder / "huggingface"))


def _texts(rows: list[dict[str, str]]) -> list[str]:
    return [row["text"] for row in rows]


def huggingface_loader(folder: Path) -> Iterable[Any]:
    """Read Hugging Face datasets through a DataLoader, following its documentation."""
    return DataLoader(_loaded(folder), batch_size=BATCH, shuffle=True, collate_fn=_texts)


def huggingface_arrow(folder: Path) -> Epochs:
    """Read Hugging Face datasets without leaving Arrow."""
    dataset = _loaded(folder).with_format("arrow")
    return Epochs(lambda: (dataset[indices]["text"].combine_chunks() for indices in shuffled(len(dataset))))


def litdata(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """Return LitData's loader."""
    import litdata as package  # noqa: PLC0415  a rival, where it is installed

    dataset = package.StreamingDataset(str(folder / "litdata"), shuffle=True, drop_last=False)
    loader: Iterable[Any] = package.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=identity, persistent_workers=num_workers > 0
    )
    return loader


def webdataset(folder: Path, num_workers: int = 0) -> Iterable[Any]:
    """Return WebDataset."""
    import webdataset as package  # noqa: PLC0415  as above

    shards = [str(path) for path in sorted((folder / "webdataset").glob("*.tar"))]
    dataset = package.WebDataset(shards, shardshuffle=len(shards)).shuffle(2000).decode().to_tuple("txt")
    batched: Iterable[Any] = dataset.batched(BATCH, collation_fn=_first)
    if not num_workers:
        return batched
    loader: Iterable[Any] = package.WebLoader(batched, batch_size=None, num_workers=num_workers, persistent_workers=True)
    return loader


def _first(rows: list[Any]) -> list[str]:
    return [row[0] for row in rows]


SYSTEMS: dict[str, System] = {
    "Hasten": System(open=lambda at: ours(at, strings=["text"]), files=("store",), shuffle="window"),
    "Hasten, all mixed": System(open=lambda at: ours(at, strings=["text"], window_blocks=ALL_BLOCKS), files=("store",)),
    "Hasten, Arrow": System(open=ours, files=("store",), shuffle="window"),
    "Hasten, Arrow, all mixed": System(open=lambda at: ours(at, window_blocks=ALL_BLOCKS), files=("store",)),
    "Hasten, Arrow, all mixed, 2 threads": System(
        open=lambda at: ours(at, window_blocks=ALL_BLOCKS, workers=2), files=("store",)
    ),
    "list in memory": System(open=in_memory, files=("talks.parquet",), against="Hasten, all mixed", reference=True),
    "JSONL, DataLoader": System(open=lines, files=("talks.jsonl",), against="Hasten, all mixed"),
    "Parquet, row groups": System(open=parquet, files=("talks.parquet",), shuffle="window", against="Hasten"),
    "Hugging Face": System(open=huggingface, files=("huggingface",), against="Hasten, all mixed", needs="datasets"),
    "Hugging Face, DataLoader": System(
        open=huggingface_loader, files=("huggingface",), against="Hasten, all mixed", needs="datasets"
    ),
    "Hugging Face, Arrow": System(
        open=huggingface_arrow, files=("huggingface",), against="Hasten, Arrow, all mixed", needs="datasets"
    ),
    "LitData": System(open=litdata, files=("litdata",), shuffle="chunks", against="Hasten", needs="litdata"),
    "LitData, 2 workers": System(
        open=lambda at: litdata(at, 2), files=("litdata",), shuffle="chunks", against="Hasten", needs="litdata"
    ),
    "WebDataset": System(open=webdataset, files=("webdataset",), shuffle="buffer", against="Hasten", needs="webdataset"),
    "WebDataset, 2 workers": System(
        open=lambda at: webdataset(at, 2), files=("webdataset",), shuffle="buffer", against="Hasten", needs="webdataset"
    ),
}
