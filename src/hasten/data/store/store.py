"""A store opened for reading: rows by number, and everything a stream needs to read them in an order."""

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
    """Rows on disk, mapped into memory: a map-style dataset, whose rows cost nothing until they are read.

    It may be sent to other processes, which map the same files: the page cache of the system is the only copy.

    Args:
        path: A folder, or a URL that fsspec knows (`s3://...`, `http://...`), or a `Url` with settings of its own.
        version: Which version; None takes the newest there is now.

    Raises:
        DataError: There is no such store or version.
        CorruptError: Its manifest is damaged.
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
        """A row: plain values of Arrow columns, arrays of raw ones."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows at once: what PyTorch's DataLoader asks for where it can."""
        taken = self.take(rows)
        plain = {name: values if isinstance(values, np.ndarray) else values.to_pylist() for name, values in taken.items()}
        return [{name: values[number] for name, values in plain.items()} for number in range(len(rows))]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return self.manifest.columns

    def take(self, rows: Sequence[int] | np.ndarray[Any, Any], columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Rows by number, in the order asked for.

        Args:
            rows: Numbers; those below 0 count from the end.
            columns: Which; None takes all.

        Returns:
            By column: a `pyarrow.Array`, or for a raw column a new NumPy array `[rows, *shape]`.

        Raises:
            IndexError: A row does not exist.
            DataError: A column does not exist.
        """
        at = np.asarray(rows, dtype=np.int64)
        at = np.where(at < 0, at + len(self), at)
        if len(at) and not (at.min() >= 0 and at.max() < len(self)):
            raise IndexError(
                f"row {int(at.max()) if at.max() >= len(self) else int(at.min())} of a store of {len(self):,} rows"
            )
        names = self.checked_columns(columns)
        arrow = [name for name in names if self.manifest.raw_column(name) is None]
        window = Window(self.reader, np.unique(self.reader.blocks_of(at))) if arrow and len(at) else None
        found: dict[str, Any] = {}
        for name in names:
            if name not in arrow:
                found[name] = gather_raw(self.reader, name, at)
            elif window is not None:
                found[name] = window.arrow(name, at)
            else:
                found[name] = pa.array([], self.manifest.schema.field(name).type)
        return found

    def checked_columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """The columns asked for, all where None.

        Raises:
            DataError: The store lacks one of them.
        """
        names = self.columns if columns is None else tuple(columns)
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise DataError(f"{self.source.where} has no column {missing[0]!r}; it has {', '.join(self.columns)}.")
        return names


def open_source(path: str | os.PathLike[str]) -> Source:
    """Where a store's files come from."""
    text = os.fspath(path)
    return Url(text) if "://" in text else Folder(Path(text))
