"""Define a store on disk: the manifest, and the files it lists.

    STORE/
      manifest.json               the newest version, replaced in one rename; files it does not list do not count
      versions/000001.json        every published version; never modified
      shards/3f9c...-00000.arrow  Arrow IPC blocks: the variable-width columns
      shards/3f9c...-00000.image.raw   one fixed-width column: contiguous rows and nothing more
      quarantine/3f9c...-00000.jsonl   records that a conversion rejected; listed in the version's provenance
      writing/3f9c.../            files of a writer that has not published them yet

A published shard never changes, so a reader that opened version 3 keeps reading version 3 while version 4 is written. Shard
names begin with the random name of their writer, so writers never conflict.
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
"""Number of bytes that are fetched from a remote store and verified in one piece."""
BLOCK_ROWS = 2048
"""Default number of rows per block. The rows of a block are read and shuffled together."""
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, kw_only=True)
class RawColumn:
    """Describe a column whose rows all have one type and shape, stored as raw little-endian numbers.

    Attributes:
        name: Name of the column.
        dtype: NumPy's name of the type, such as `uint8` or `float32`.
        shape: Shape of one row; empty if a row is a single number.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """Return the type in the byte order of the file."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes."""
        return self.numpy.itemsize * math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """Describe one file of a shard.

    Attributes:
        path: Path within the store, with forward slashes.
        column: The raw column in the file; empty for Arrow blocks.
        num_bytes: Size of the file.
        sha256: Hash of the whole file, in hexadecimal.
        blocks: Byte offset of the start of each Arrow block, followed by the end of the last one; empty for a raw column.
        parts: CRC-32 of each part of `PART_BYTES`, the unit of remote reads and verification.
    """

    path: str
    column: str
    num_bytes: int
    sha256: str
    blocks: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Describe rows that were written together.

    Attributes:
        name: Globally unique name.
        num_rows: Number of rows.
        files: One file for the Arrow blocks, if there are Arrow columns, and one file for each raw column.
    """

    name: str
    num_rows: int
    files: tuple[ShardFile, ...]

    def file(self, column: str) -> ShardFile:
        """Return the file of a raw column, or of the Arrow blocks (`""`)."""
        for file in self.files:
            if file.column == column:
                return file
        raise CorruptError(f"shard {self.name} has no file for column {column!r}: run `hasten data verify` on the store.")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describe one version of a store.

    Attributes:
        version: Number of the version; the first is 1.
        schema: Columns stored in Arrow blocks.
        raw: Columns stored as raw numbers.
        block_rows: Number of rows per block; the last block of a shard may be shorter.
        shards: Shards in row order.
        provenance: What the rows were made from, and how. Strings and numbers, never content.
    """

    version: int
    schema: pa.Schema
    raw: tuple[RawColumn, ...]
    block_rows: int
    shards: tuple[Shard, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def num_rows(self) -> int:
        """Return the number of rows of all shards."""
        return sum(shard.num_rows for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Return the size of all shards in bytes."""
        return sum(file.num_bytes for shard in self.shards for file in shard.files)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of all columns, Arrow columns first."""
        return (*self.schema.names, *(column.name for column in self.raw))

    def raw_column(self, name: str) -> RawColumn | None:
        """Return the raw column of that name, or None."""
        return next((column for column in self.raw if column.name == name), None)

    def to_json(self) -> str:
        """Return the content of the manifest file."""
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
        """Parse a manifest file.

        Raises:
            CorruptError: The text is not a manifest, or it lists files outside the store.
            DataError: The manifest has a newer format.
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
                f"{where} is not a store manifest ({error}): restore it, or convert the source again."
            ) from error
        if manifest.num_rows != read["num_rows"]:
            raise CorruptError(
                f"{where} declares {read['num_rows']} rows, but its shards have {manifest.num_rows}: it was edited by hand."
            )
        return manifest


def described(schema: pa.Schema, raw: Sequence[RawColumn]) -> dict[str, str]:
    """Return the type of each column as text."""
    return {
        **{part.name: str(part.type) for part in schema},
        **{part.name: f"{part.dtype}[{', '.join(map(str, part.shape))}]" if part.shape else part.dtype for part in raw},
    }


def shard_from_dict(read: dict[str, Any]) -> Shard:
    """Build a shard from the result of `dataclasses.asdict`."""
    return _shard(read)


def checked_name(name: str) -> str:
    """Return a column name after checking that it can be part of a file name.

    Raises:
        DataError: The name contains other characters than letters, digits, `_`, `.` and `-`, or begins with a dot.
    """
    if not _SAFE.fullmatch(name):
        raise DataError(
            f"{name!r} is not a valid name for a raw column: use letters, digits, '_', '.' and '-', without a dot first."
        )
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
    """Check that a path from a manifest, which may be untrusted, is within the store."""
    folder, _, name = path.partition("/")
    if folder != SHARDS or not _SAFE.fullmatch(name):
        raise ValueError(f"{path!r} is not in the store's folder of shards")
    return path
