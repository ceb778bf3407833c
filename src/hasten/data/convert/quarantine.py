"""Quarantine bad records in a file of the store.

The file contains the source, position and reason of each bad record, and the record itself as base64, unless the conversion
is private. Only its owner can read it.

No log or message ever shows the content of a record. Each conversion has its own file, which is complete before the
version that lists it is published, so the rejected records of every visible version can be found.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from hasten.core.files import flush_folder
from hasten.data.convert.contract import Bad
from hasten.data.store.layout import QUARANTINE

BAD = "bad.jsonl"
"""File name for the bad records of one unit until the store is published."""
MAX_RECORD_BYTES = 2**20
"""Number of bytes of a record that are kept."""


def line_of(bad: Bad) -> str:
    """Return a bad record as a line of JSON."""
    entry = {
        "source": bad.source,
        "position": bad.position,
        "reason": bad.reason,
        **({"record_base64": base64.b64encode(bad.record[:MAX_RECORD_BYTES]).decode("ascii")} if bad.record else {}),
        **({"record_bytes": len(bad.record)} if len(bad.record) > MAX_RECORD_BYTES else {}),
    }
    return json.dumps(entry) + "\n"


def open_private(path: Path) -> TextIO:
    """Open a new text file that only its owner can read, from the first byte on."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8")  # noqa: PTH123


def write_quarantine(store: Path, name: str, parts: Iterable[Path]) -> str | None:
    """Write the bad records of a conversion to a file of the store, flushed to disk.

    Args:
        store: Folder of the store.
        name: Name of the conversion. It is the same when the conversion is resumed; the file is then rewritten.
        parts: Files with the bad records of the units, in order; some can be empty.

    Returns:
        Path of the file within the store; None if there are no bad records.
    """
    filled = [part for part in parts if part.stat().st_size]
    if not filled:
        return None
    folder = store / QUARANTINE
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.jsonl"
    new = path.with_suffix(".new")
    with open_private(new) as file:
        for part in filled:
            with part.open(encoding="utf-8") as source:
                shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    for changed in (folder, store):
        flush_folder(changed)
    return f"{QUARANTINE}/{path.name}"
