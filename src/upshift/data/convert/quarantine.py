"""Bad records, set aside in a file beside the store, and the rate at which there are too many.

The file tells source, position and reason of each, and holds the record itself as base64, for its owner alone to read. No
log and no message ever shows what a record holds.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from pathlib import Path

from upshift.core.errors import DataError
from upshift.core.files import write_atomically
from upshift.data.convert.contract import Bad

QUARANTINE = "quarantine.jsonl"
_EARLY = 1000
"""Records after which a conversion may fail before its end."""


def lines(bad: Iterable[Bad]) -> str:
    """Bad records as lines of JSON."""
    return "".join(
        json.dumps(
            {
                "source": one.source,
                "position": one.position,
                "reason": one.reason,
                "record_base64": base64.b64encode(one.record).decode("ascii"),
            }
        )
        + "\n"
        for one in bad
    )


def set_aside(store: Path, text: str) -> Path:
    """Write the file of bad records, after those of earlier conversions into the same store."""
    path = store / QUARANTINE
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomically(path, before + text)
    os.chmod(path, 0o600)  # noqa: PTH101  as short, and no link is followed here
    return path


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
            f"name "
            f"the columns or the format if they were guessed wrong, or allow more (--max-bad). Nothing was published."
        )
