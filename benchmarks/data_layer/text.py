"""Text: batches of 256 dialogues, as strings or in Arrow, in another order each epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from torch.utils.data import DataLoader, Dataset

from benchmarks.data_layer.system import System, identity
from upshift.data import Stream

BATCH = 256
ALL_BLOCKS = 2**30
"""A window of all blocks: every sample is mixed with every other."""
_GROUPS = 16
"""Row groups that are mixed with one another; as many rows as in a window of the store."""


def ours(folder: Path, **settings: Any) -> Iterator[Any]:
    """A stream."""
    for batch in Stream(folder / "store", batch_size=BATCH, **settings):
        yield batch["text"]


def in_memory(folder: Path) -> Iterator[Any]:
    """Strings that are in memory already, picked by a random order."""
    rows = _in_memory(folder)
    for indices in _shuffled(len(rows)):
        yield [rows[index] for index in indices]


_HELD: dict[Path, list[str]] = {}


def _in_memory(folder: Path) -> list[str]:
    if folder not in _HELD:
        _HELD[folder] = pyarrow.parquet.read_table(folder / "talks.parquet")["text"].to_pylist()
    return _HELD[folder]


def _shuffled(count: int) -> Iterator[list[int]]:
    order = np.random.default_rng().permutation(count)
    for start in range(0, count, BATCH):
        yield order[start : start + BATCH].tolist()


class _Lines(Dataset[str]):
    """Lines of a JSONL file by their offsets, one at a time, as many a training script has it."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, path.open("rb")
        sizes = [len(line) for line in self._file]
        self._starts = np.cumsum([0, *sizes]).tolist()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        self._file.seek(self._starts[index])
        found: str = json.loads(self._file.readline())["text"]
        return found


def lines(folder: Path) -> Iterator[Any]:
    """A DataLoader over the lines of a JSONL file."""
    yield from DataLoader(_Lines(folder / "talks.jsonl"), batch_size=BATCH, shuffle=True, collate_fn=identity)


def parquet(folder: Path) -> Iterator[Any]:
    """Some row groups of a Parquet file at a time, their rows shuffled."""
    file = pyarrow.parquet.ParquetFile(folder / "talks.parquet")
    random = np.random.default_rng()
    groups = random.permutation(file.num_row_groups).tolist()
    for at in range(0, len(groups), _GROUPS):
        column = file.read_row_groups(groups[at : at + _GROUPS])["text"].combine_chunks()
        order = random.permutation(len(column))
        for start in range(0, len(order), BATCH):
            yield column.take(order[start : start + BATCH]).to_pylist()


def huggingface(folder: Path) -> Iterator[Any]:
    """Hugging Face datasets, map-style: the rows of a batch in one call, the fastest way it has."""
    from datasets import load_from_disk  # noqa: PLC0415  a rival, where it is installed

    dataset = load_from_disk(str(folder / "huggingface"))
    for indices in _shuffled(len(dataset)):
        yield dataset[indices]["text"]


def _texts(rows: list[dict[str, str]]) -> list[str]:
    return [row["text"] for row in rows]


def huggingface_loader(folder: Path) -> Iterator[Any]:
    """The same through a DataLoader, as its documentation has it."""
    from datasets import load_from_disk  # noqa: PLC0415  as above

    dataset: Any = load_from_disk(str(folder / "huggingface"))
    yield from DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=_texts)


def huggingface_arrow(folder: Path) -> Iterator[Any]:
    """The same, staying in Arrow."""
    from datasets import load_from_disk  # noqa: PLC0415  as above

    dataset = load_from_disk(str(folder / "huggingface")).with_format("arrow")
    for indices in _shuffled(len(dataset)):
        yield dataset[indices]["text"].combine_chunks()


def litdata(folder: Path, num_workers: int = 0) -> Iterator[Any]:
    """LitData."""
    import litdata as package  # noqa: PLC0415  as above

    dataset = package.StreamingDataset(str(folder / "litdata"), shuffle=True, drop_last=False)
    yield from package.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=identity)


def webdataset(folder: Path, num_workers: int = 0) -> Iterator[Any]:
    """WebDataset."""
    import webdataset as package  # noqa: PLC0415  as above

    shards = [str(path) for path in sorted((folder / "webdataset").glob("*.tar"))]
    dataset = package.WebDataset(shards, shardshuffle=len(shards)).shuffle(2000).decode().to_tuple("txt")
    batched = dataset.batched(BATCH, collation_fn=_first)
    yield from package.WebLoader(batched, batch_size=None, num_workers=num_workers) if num_workers else batched


def _first(rows: list[Any]) -> list[str]:
    return [row[0] for row in rows]


SYSTEMS: dict[str, System] = {
    "Upshift": System(epoch=lambda at: ours(at, strings=["text"]), files=("store",), shuffle="window"),
    "Upshift, all mixed": System(epoch=lambda at: ours(at, strings=["text"], window_blocks=ALL_BLOCKS), files=("store",)),
    "Upshift, Arrow": System(epoch=ours, files=("store",), shuffle="window"),
    "Upshift, Arrow, all mixed": System(epoch=lambda at: ours(at, window_blocks=ALL_BLOCKS), files=("store",)),
    "list in memory": System(epoch=in_memory, files=("talks.parquet",), against="Upshift, all mixed", reference=True),
    "JSONL, DataLoader": System(epoch=lines, files=("talks.jsonl",), against="Upshift, all mixed"),
    "Parquet, row groups": System(epoch=parquet, files=("talks.parquet",), shuffle="window", against="Upshift"),
    "Hugging Face": System(epoch=huggingface, files=("huggingface",), against="Upshift, all mixed", needs="datasets"),
    "Hugging Face, DataLoader": System(
        epoch=huggingface_loader, files=("huggingface",), against="Upshift, all mixed", needs="datasets"
    ),
    "Hugging Face, Arrow": System(
        epoch=huggingface_arrow, files=("huggingface",), against="Upshift, Arrow, all mixed", needs="datasets"
    ),
    "LitData": System(epoch=litdata, files=("litdata",), shuffle="chunks", against="Upshift", needs="litdata"),
    "LitData, 2 workers": System(
        epoch=lambda at: litdata(at, 2), files=("litdata",), shuffle="chunks", against="Upshift", needs="litdata"
    ),
    "WebDataset": System(epoch=webdataset, files=("webdataset",), shuffle="buffer", against="Upshift", needs="webdataset"),
    "WebDataset, 2 workers": System(
        epoch=lambda at: webdataset(at, 2), files=("webdataset",), shuffle="buffer", against="Upshift", needs="webdataset"
    ),
}
