"""Open a store for reading: access rows by number, and provide what a stream needs to read them in a given order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset

from hasten.core.errors import DataError
from hasten.data.remote.source import Url
from hasten.data.store.layout import Manifest
from hasten.data.store.mapping import Folder, Source
from hasten.data.store.reading import Reader
from hasten.data.store.window import Window, gather_raw


class Store(Dataset[dict[str, Any]]):
    """Read rows from disk through a memory map, as a map-style dataset. A row costs nothing until it is read.

    A store can be sent to other processes, which map the same files: the system's page cache holds the only copy.

    Args:
        path: A folder, a URL that fsspec supports (`s3://...`, `http://...`), or a `Url` with its own settings.
        version: Version to open; None opens the newest.

    Raises:
        DataError: The store or version does not exist.
        CorruptError: The manifest is damaged.
    """

    def __init__(self, path: str | os.PathLike[str] | Source, *, version: int | None = None) -> None:
        self.source = path if isinstance(path, Source) else open_source(path)
        self.manifest = Manifest.from_json(self.source.manifest(version), self.source.where)
        self.reader = Reader(self.source, self.manifest)

    def __len__(self) -> int:
        return self.manifest.num_rows

    def __repr__(self) -> str:
        return (
            f"Store({self.source.where!r}, version={self.manifest.version}, {len(self):,} rows of {', '.join(self.columns)})"
        )

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return a row: plain values for Arrow columns, arrays for raw columns."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows in one call, as PyTorch's DataLoader requests them."""
        taken = self.take(rows)
        plain = {name: values if isinstance(values, np.ndarray) else values.to_pylist() for name, values in taken.items()}
        return [{name: values[number] for name, values in plain.items()} for number in range(len(rows))]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of all columns."""
        return self.manifest.columns

    def take(self, rows: Sequence[int] | np.ndarray[Any, Any], columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return rows by number, in the order requested.

        Args:
            rows: Row numbers; negative numbers count from the end.
            columns: Names of the columns; None returns all.

        Returns:
            For each column a `pyarrow.Array`, or for a raw column a new NumPy array `[rows, *shape]`.

        Raises:
            IndexError: A row does not exist.
            DataError: A column does not exist.
        """
        index = np.asarray(rows, dtype=np.int64)
        index = np.where(index < 0, index + len(self), index)
        if len(index) and not (index.min() >= 0 and index.max() < len(self)):
            row = int(index.max()) if index.max() >= len(self) else int(index.min())
            raise IndexError(f"row {row} is out of range: the store has {len(self):,} rows")
        names = self.checked_columns(columns)
        arrow = [name for name in names if self.manifest.raw_column(name) is None]
        window = Window(self.reader, np.unique(self.reader.blocks_of(index))) if arrow and len(index) else None
        values: dict[str, Any] = {}
        for name in names:
            if name not in arrow:
                values[name] = gather_raw(self.reader, name, index)
            elif window is not None:
                values[name] = window.arrow(name, index)
            else:
                values[name] = pa.array([], self.manifest.schema.field(name).type)
        return values

    def checked_columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the requested columns; None requests all.

        Raises:
            DataError: A column does not exist.
        """
        names = self.columns if columns is None else tuple(columns)
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise DataError(f"{self.source.where} has no column {missing[0]!r}; its columns are {', '.join(self.columns)}.")
        return names


def open_source(path: str | os.PathLike[str]) -> Source:
    """Return the source of a store's files for a folder or URL."""
    text = os.fspath(path)
    return Url(text) if "://" in text else Folder(Path(text))
