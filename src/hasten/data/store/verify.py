"""Read every byte of a store again and report the shards that are corrupt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from hasten.core.errors import DataError
from hasten.data.store.layout import Shard
from hasten.data.store.reading import Reader
from hasten.data.store.store import Store

_PART = 2**23
"""Number of bytes hashed at a time, so that the system can release mapped pages afterwards."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Describe a problem of one shard.

    Attributes:
        shard: Name of the shard.
        path: The file within the store; empty if a block is affected.
        first_row: First affected row in the store.
        num_rows: Number of affected rows.
        problem: Description of the problem.
    """

    shard: str
    path: str
    first_row: int
    num_rows: int
    problem: str


def verify(store: Store, *, progress: Callable[[int], None] = lambda _: None) -> list[Damage]:
    """Verify the checksums of all files, and open all blocks.

    Args:
        store: The version to verify.
        progress: Called with the number of bytes read since the last call.

    Returns:
        One entry per damaged file; empty if the store is intact.
    """
    damages, first = [], 0
    for shard in store.manifest.shards:
        for path, problem in _problems(store, shard, progress):
            damages.append(Damage(shard=shard.name, path=path, first_row=first, num_rows=shard.num_rows, problem=problem))
        first += shard.num_rows
    if not damages:
        damages.extend(_blocks(store))
    return damages


def _problems(store: Store, shard: Shard, progress: Callable[[int], None]) -> list[tuple[str, str]]:
    problems = []
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
            problems.append((file.path, str(error)))
            continue
        if digest.hexdigest() != file.sha256:
            problems.append(
                (file.path, f"its bytes were modified after writing: SHA-256 {digest.hexdigest()} instead of {file.sha256}")
            )
    return problems


def _blocks(store: Store) -> list[Damage]:
    """Find blocks that cannot be read although their bytes are intact, which means that the manifest is wrong."""
    reader = Reader(store.source, store.manifest)
    damages = []
    if len(store.manifest.schema):
        for number in range(len(reader.block_counts)):
            try:
                reader.block(number)
            except DataError as error:
                row = int(reader.block_firsts[number])
                shard = reader.shard_at(row)
                rows = int(reader.block_counts[number])
                damages.append(Damage(shard=shard.name, path="", first_row=row, num_rows=rows, problem=str(error)))
    return damages
