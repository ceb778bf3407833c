"""Publish a new version of a store atomically, and remove files left by crashed writers.

Each writer uses its own folder `writing/NAME`, so writers never touch each other's files. The writer holds an operating
system lock on that folder, which is released when its process ends, even after a crash. Publishing moves the finished
shards, writes the version's manifest, and then replaces `manifest.json` in one rename, all under a lock that only
publishers take. Files left by a crash are listed in no manifest: no reader sees them, and `clean` removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.core.files import flush_folder, write_atomically
from hasten.data.store.layout import (
    MANIFEST,
    QUARANTINE,
    SHARDS,
    VERSIONS,
    WRITING,
    Manifest,
    RawColumn,
    Shard,
    described,
)
from hasten.data.store.mapping import version_path

Mode: TypeAlias = Literal["create", "append", "replace"]
_OWNER = "owner.lock"


def publish(
    path: Path,
    shards: Sequence[Shard],
    *,
    folders: Sequence[Path],
    schema: pa.Schema,
    raw: Sequence[RawColumn],
    block_rows: int,
    mode: Mode,
    provenance: dict[str, Any],
) -> Manifest:
    """Make shards visible as a new version.

    Args:
        path: Folder of the store.
        shards: Shards to publish, in row order.
        folders: Current folders of their files: `writing/NAME` of each writer.
        schema: Schema of the columns stored in Arrow blocks.
        raw: Columns stored as raw numbers.
        block_rows: Number of rows per block; the last block of a shard may be shorter.
        mode: `create` a new store, `append` to an existing one, or `replace` all its rows in a new version.
        provenance: What the rows were made from.

    Raises:
        DataError: The store already exists (`create`), or has other columns (`append`).
    """
    with _publishing(path):
        have = current(path)
        if have is not None and mode == "create":
            raise DataError(exists(path, have))
        if have is not None and mode == "append":
            _check_alike(path, have, schema, raw, block_rows)
        kept = have.shards if have is not None and mode == "append" else ()
        manifest = Manifest(
            version=_next_version(path),
            schema=schema,
            raw=tuple(raw),
            block_rows=block_rows,
            shards=(*kept, *shards),
            provenance=provenance,
        )
        _move(path, shards, folders)
        text = manifest.to_json()
        write_atomically(path / version_path(manifest.version), text)
        write_atomically(path / MANIFEST, text)  # the new version becomes visible here
    return manifest


def exists(path: Path, have: Manifest) -> str:
    """Return the message for a store that already exists."""
    return (
        f"{path} already is a store of {have.num_rows:,} rows (version {have.version}): append to it (--append), replace "
        f"it (--replace), or use another folder."
    )


def current(path: Path) -> Manifest | None:
    """Return the newest version, or None if there is no store yet."""
    file = path / MANIFEST
    try:
        return Manifest.from_json(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        return None


@contextmanager
def writing(path: Path, name: str) -> Iterator[Path]:
    """Create the folder of a writer, locked while the writer runs and removed afterwards."""
    folder = path / WRITING / name
    folder.mkdir(parents=True)
    handle = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
        _remove_empty(path / WRITING)


def clean(path: Path) -> list[str]:
    """Remove the files of writers that no longer run, and shards and quarantine files that no version lists.

    Returns:
        Paths of the removed files and folders within the store.
    """
    removed = []
    with _publishing(path):
        for folder in sorted((path / WRITING).glob("*")):
            if not _owned(folder):
                shutil.rmtree(folder)
                removed.append(f"{WRITING}/{folder.name}")
        named = {file.path for manifest in _versions(path) for shard in manifest.shards for file in shard.files}
        named |= {str(manifest.provenance.get(QUARANTINE)) for manifest in _versions(path)}
        _remove_empty(path / WRITING)
        # A conversion that is about to publish has already written its quarantine file.
        for kind in (SHARDS,) if (path / WRITING).exists() else (SHARDS, QUARANTINE):
            for file in sorted((path / kind).glob("*")):
                if f"{kind}/{file.name}" not in named:
                    file.unlink()
                    removed.append(f"{kind}/{file.name}")
            _remove_empty(path / kind)
    return removed


def _owned(folder: Path) -> bool:
    """Return True if the writer of a folder still runs and holds its lock."""
    try:
        handle = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def _publishing(path: Path) -> Iterator[None]:
    """Allow one publisher at a time. The lock is released when its process ends."""
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path / ".publishing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _versions(path: Path) -> Iterator[Manifest]:
    for file in (path / MANIFEST, *sorted((path / VERSIONS).glob("*.json"))):
        if file.exists():
            yield Manifest.from_json(file.read_text(encoding="utf-8"), str(file))


def _next_version(path: Path) -> int:
    """Return a number above all versions ever started: a publisher may have crashed between its two writes."""
    return max((int(file.stem) for file in (path / VERSIONS).glob("*.json")), default=0) + 1


def _move(path: Path, shards: Sequence[Shard], folders: Sequence[Path]) -> None:
    (path / SHARDS).mkdir(exist_ok=True)
    for shard in shards:
        for file in shard.files:
            name = Path(file.path).name
            source = next((folder / name for folder in folders if (folder / name).exists()), None)
            if source is None and (path / file.path).exists():
                continue  # already moved by a publisher that was killed; names are unique
            if source is None:
                raise DataError(f"{name} was written but no longer exists: another program removes files under {path}.")
            source.replace(path / file.path)
    flush_folder(path / SHARDS)


def _check_alike(path: Path, have: Manifest, schema: pa.Schema, raw: Sequence[RawColumn], block_rows: int) -> None:
    if have.schema.equals(schema) and have.raw == tuple(raw) and have.block_rows == block_rows:
        return
    old, new = (
        ", ".join(f"{name}: {kind}" for name, kind in described(*columns).items())
        for columns in ((have.schema, have.raw), (schema, tuple(raw)))
    )
    raise DataError(
        f"{path} has the columns ({old}; blocks of {have.block_rows}), to which ({new}; blocks of {block_rows}) cannot be "
        f"appended: convert to the same columns, or to another folder."
    )


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # another writer is using it, or the folder does not exist
        return
