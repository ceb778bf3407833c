"""Read every byte of a store again, and say which shard is not what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from hasten.core.errors import DataError
from hasten.data.store.layout import Shard
from hasten.data.store.reading import Reader
from hasten.data.store.store import Store

_PART = 2**23
"""Bytes hashed at a time: the map's pages may go again behind it."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is wrong with one shard.

    Attributes:
        shard: Its name.
        path: The file within the store.
        first_row: The shard's first row in the store.
        num_rows: Its rows.
        problem: In words.
    """

    shard: str
    path: str
    first_row: int
    num_rows: int
    problem: str


def verify(store: Store, *, progress: Callable[[int], None] = lambda _: None) -> list[Damage]:
    """Compare all files with their checksums, and open all blocks.

    Args:
        store: The version to look at.
        progress: Called with the bytes read since the last call.

    Returns:
        One entry a damaged file; none where the store is sound.
    """
    found, first = [], 0
    for shard in store.manifest.shards:
        for path, problem in _problems(store, shard, progress):
            found.append(Damage(shard=shard.name, path=path, first_row=first, num_rows=shard.num_rows, problem=problem))
        first += shard.num_rows
    if not found:
        found.extend(_blocks(store))
    return found


def _problems(store: Store, shard: Shard, progress: Callable[[int], None]) -> list[tuple[str, str]]:
    found = []
    for file in shard.files:
        digest = hashlib.sha256()
        try:
            mapped = store.source.open(file)
            for start in range(0, file.num_bytes, _PART):
                end = min(start + _PART, file.num_bytes)
                mapped.need(start, end)
                digest.update(mapped.view[start:end])
                progress(end - start)
        except DataError as error:
            found.append((file.path, str(error)))
            continue
        if digest.hexdigest() != file.sha256:
            found.append(
                (file.path, f"its bytes changed since they were written: SHA-256 {digest.hexdigest()}, not {file.sha256}")
            )
    return found


def _blocks(store: Store) -> list[Damage]:
    """Blocks that cannot be read although their bytes are as written: the manifest itself is wrong then."""
    reader = Reader(store.source, store.manifest)
    found = []
    if len(store.manifest.schema):
        for number in range(len(reader.block_counts)):
            try:
                reader.block(number)
            except DataError as error:
                row = int(reader.block_firsts[number])
                shard = reader.shard_at(row)
                rows = int(reader.block_counts[number])
                found.append(Damage(shard=shard.name, path="", first_row=row, num_rows=rows, problem=str(error)))
    return found
