"""What a store is on disk: the manifest, and the files it names.

    STORE/
      manifest.json               the newest version, replaced in one rename: what it does not name does not exist
      versions/000001.json        every version as it was published; never changed
      shards/3f9c...-00000.arrow  Arrow IPC blocks: the variable-width columns
      shards/3f9c...-00000.image.raw   one fixed-width column: rows one after another, nothing else
      quarantine/3f9c...-00000.jsonl   records that a conversion could not use; its version's provenance names it
      writing/3f9c.../            files of a writer that has not published yet

A shard never changes once it is published, so a reader that opened version 3 goes on reading version 3 while version 4 is
made. The names of shards begin with the random name of their writer, so that writers never meet.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.core.errors import CorruptError, DataError

FORMAT = 1
MANIFEST = "manifest.json"
VERSIONS, SHARDS, WRITING, QUARANTINE = "versions", "shards", "writing", "quarantine"
PART_BYTES = 2**20
"""What is fetched from afar, and checked, at once."""
BLOCK_ROWS = 2048
"""Rows of a block unless told otherwise: what is read, and shuffled, together."""
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, kw_only=True)
class RawColumn:
    """A column whose rows all have one type and shape, kept as raw little-endian numbers.

    Attributes:
        name: Its name.
        dtype: NumPy's name of the type: `uint8`, `float32`.
        shape: Of one row; empty for a number a row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The type, in the byte order of the file."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.numpy.itemsize * math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """One file of a shard.

    Attributes:
        path: Within the store, with forward slashes.
        column: The raw column it holds; empty for the Arrow blocks.
        num_bytes: Its size.
        sha256: Of all its bytes, in hexadecimal.
        blocks: Where each Arrow block begins, in bytes, then where the last one ends; empty for a raw column.
        parts: CRC-32 of each `PART_BYTES` of it, which is what is fetched from afar and checked at once.
    """

    path: str
    column: str
    num_bytes: int
    sha256: str
    blocks: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Rows that were written together.

    Attributes:
        name: Unique in the world.
        num_rows: How many.
        files: The Arrow blocks, if any column is kept so, and one file for each raw column.
    """

    name: str
    num_rows: int
    files: tuple[ShardFile, ...]

    def file(self, column: str) -> ShardFile:
        """The file of a raw column, or of the Arrow blocks (`""`)."""
        for file in self.files:
            if file.column == column:
                return file
        raise CorruptError(f"shard {self.name} has no file for column {column!r}: run `hasten data verify` on the store.")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One version of a store.

    Attributes:
        version: 1 for the first.
        schema: The columns kept in Arrow blocks.
        raw: The columns kept as raw numbers.
        block_rows: Rows of each block but the last of a shard.
        shards: In the order of their rows.
        provenance: What the rows were made from and how; strings and numbers, never content.
    """

    version: int
    schema: pa.Schema
    raw: tuple[RawColumn, ...]
    block_rows: int
    shards: tuple[Shard, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def num_rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.num_rows for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(file.num_bytes for shard in self.shards for file in shard.files)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns: those of Arrow first."""
        return (*self.schema.names, *(column.name for column in self.raw))

    def raw_column(self, name: str) -> RawColumn | None:
        """The raw column of that name; None where there is none."""
        return next((column for column in self.raw if column.name == name), None)

    def to_json(self) -> str:
        """The text of the manifest file."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "num_rows": self.num_rows,
                "num_bytes": self.num_bytes,
                "block_rows": self.block_rows,
                "columns": described(self.schema, self.raw),
                "arrow_schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode("ascii"),
                "raw": [asdict(column) for column in self.raw],
                "provenance": self.provenance,
                "shards": [asdict(shard) for shard in self.shards],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Read a manifest file.

        Raises:
            CorruptError: It is no manifest, is of a newer format, or names files outside of the store.
        """
        try:
            read = json.loads(text)
            if read["format"] != FORMAT:
                raise DataError(
                    f"{where} has format {read['format']!r}; this version of Hasten reads format {FORMAT}: "
                    f"upgrade Hasten, or convert the source again."
                )
            manifest = cls(
                version=int(read["version"]),
                schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(read["arrow_schema"]))),
                raw=tuple(RawColumn(**{**raw, "shape": tuple(raw["shape"])}) for raw in read["raw"]),
                block_rows=int(read["block_rows"]),
                shards=tuple(_shard(part) for part in read["shards"]),
                provenance=dict(read["provenance"]),
            )
        except (ValueError, KeyError, TypeError, pa.ArrowInvalid, OSError) as error:
            raise CorruptError(
                f"{where} is no manifest of a store ({error}): restore it, or convert the source again."
            ) from error
        if manifest.num_rows != read["num_rows"]:
            raise CorruptError(
                f"{where} speaks of {read['num_rows']} rows, its shards of {manifest.num_rows}: it was changed by hand."
            )
        return manifest


def described(schema: pa.Schema, raw: Sequence[RawColumn]) -> dict[str, str]:
    """Each column's type in words."""
    return {
        **{part.name: str(part.type) for part in schema},
        **{part.name: f"{part.dtype}[{', '.join(map(str, part.shape))}]" if part.shape else part.dtype for part in raw},
    }


def shard_from_dict(read: dict[str, Any]) -> Shard:
    """A shard from what `dataclasses.asdict` made of it."""
    return _shard(read)


def checked_name(name: str) -> str:
    """A column's name, which also names a file.

    Raises:
        DataError: It holds more than letters, digits, `_`, `.` and `-`, and so may lead out of the store.
    """
    if not _SAFE.fullmatch(name):
        raise DataError(f"{name!r} cannot name a raw column: use letters, digits, '_', '.' and '-', and no dot first.")
    return name


def _shard(read: dict[str, Any]) -> Shard:
    files = tuple(
        ShardFile(
            path=_checked_path(part["path"]),
            column=part["column"],
            num_bytes=int(part["num_bytes"]),
            sha256=part["sha256"],
            blocks=tuple(map(int, part["blocks"])),
            parts=tuple(map(int, part["parts"])),
        )
        for part in read["files"]
    )
    return Shard(name=read["name"], num_rows=int(read["num_rows"]), files=files)


def _checked_path(path: str) -> str:
    """A path of a manifest, which may come from a stranger: it must stay within the store."""
    folder, _, name = path.partition("/")
    if folder != SHARDS or not _SAFE.fullmatch(name):
        raise ValueError(f"{path!r} does not lie in the store's folder of shards")
    return path
