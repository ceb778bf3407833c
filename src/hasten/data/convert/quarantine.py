"""Quarantine bad records in a file of the store, and fail a conversion that finds too many.

The file contains the source, position and reason of each bad record, and the record itself as base64. Only its owner can
read it. No log or message ever shows the content of a record. Each conversion has its own file, which is complete before the
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

from hasten.core.errors import DataError
from hasten.core.files import flush_folder
from hasten.data.convert.contract import Bad
from hasten.data.store.layout import QUARANTINE

BAD = "bad.jsonl"
"""File name for the bad records of one unit until the store is published."""
_EARLY = 1000
"""Number of records after which a conversion can fail before its end."""


def line_of(bad: Bad) -> str:
    """Return a bad record as a line of JSON."""
    entry = {
        "source": bad.source,
        "position": bad.position,
        "reason": bad.reason,
        "record_base64": base64.b64encode(bad.record).decode("ascii"),
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


def check_rate(good: int, bad: int, max_bad_frac: float, *, ended: bool, where: str) -> None:
    """Fail a conversion that finds too many bad records.

    Args:
        good: Number of records used.
        bad: Number of records quarantined.
        max_bad_frac: Maximum share of bad records.
        ended: True if all records were read. Before the end, at least 1,000 records are required to fail.
        where: File that lists the bad records.

    Raises:
        DataError: There are too many bad records.
    """
    total = good + bad
    if bad and (ended or total >= _EARLY) and bad > max_bad_frac * total:
        raise DataError(
            f"{bad:,} of {total:,} records are bad, more than {max_bad_frac:.2%}. {where} lists them with reasons. Fix the "
            f"records, set the columns or the format if they were guessed wrong, or allow more bad records (--max-bad). "
            f"Nothing was published."
        )
