"""Bad records, set aside in a file beside the store, and the rate at which there are too many.

The file tells source, position and reason of each, and holds the record itself as base64, for its owner alone to read. No
log and no message ever shows what a record holds. Each conversion has a file of its own, which is whole before the version
that names it is published: whoever sees the rows finds the records that are not among them.
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
"""The bad records of one unit, until the store is published."""
_EARLY = 1000
"""Records after which a conversion may fail before its end."""


def line_of(bad: Bad) -> str:
    """A bad record as a line of JSON."""
    told = {
        "source": bad.source,
        "position": bad.position,
        "reason": bad.reason,
        "record_base64": base64.b64encode(bad.record).decode("ascii"),
    }
    return json.dumps(told) + "\n"


def only_for_its_owner(path: Path) -> TextIO:
    """A new file of text that nobody else may read, from its first byte on."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8")  # noqa: PTH123


def set_aside(store: Path, name: str, parts: Iterable[Path]) -> str | None:
    """Put the bad records of a conversion into a file of the store, flushed to the disk.

    Args:
        store: The store.
        name: Of the conversion, the same whenever it is taken up again: then the file is written anew, with the same lines.
        parts: The files of its units, in order; some may be empty.

    Returns:
        The file's path within the store; None where there are no bad records.
    """
    filled = [part for part in parts if part.stat().st_size]
    if not filled:
        return None
    folder = store / QUARANTINE
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.jsonl"
    new = path.with_suffix(".new")
    with only_for_its_owner(new) as file:
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
        good: Records used.
        bad: Records set aside.
        max_bad_frac: Share of all records that may be bad.
        ended: All records were seen; before, a thousand must have been.
        where: The file that tells about them.

    Raises:
        DataError: There are too many.
    """
    seen = good + bad
    if bad and (ended or seen >= _EARLY) and bad > max_bad_frac * seen:
        raise DataError(
            f"{bad:,} of {seen:,} records are bad, more than {max_bad_frac:.2%}. {where} says which and why; mend them, "
            f"name the columns or the format if they were guessed wrong, or allow more (--max-bad). Nothing was published."
        )
