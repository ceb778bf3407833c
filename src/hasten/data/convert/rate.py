"""Fail a conversion that finds too many bad records."""

from __future__ import annotations

from collections.abc import Collection

from hasten.core.errors import DataError
from hasten.data.convert.reasons import in_words, tallied
from hasten.data.convert.unit import Converted

_EARLY = 1000
"""Number of records after which a conversion can fail before its end."""


def check_rate(done: Collection[Converted], num_units: int, max_bad_frac: float, where: str) -> None:
    """Fail a conversion that finds too many bad records, or loses too many files. A single one is too many only for 0.

    Args:
        done: Results of the units so far.
        num_units: Number of all units. Before the end, at least 1,000 records are required to fail.
        max_bad_frac: Maximum share of bad records and of units that were not read to their end.
        where: File that lists the bad records.

    Raises:
        DataError: There are too many bad records, or no others.
    """
    bad, lost = sum(unit.num_bad for unit in done), sum(unit.is_lost for unit in done)
    total = bad + sum(unit.num_records for unit in done)
    ended = len(done) == num_units
    if not bad or not (ended or total >= _EARLY):
        return
    reasons = in_words(tallied(reason for unit in done for reason in unit.reasons.items()))
    if ended and bad == total:
        raise DataError(f"nothing can be used: {reasons}. {where} lists what was read. Nothing was published.")
    for count, whole, what in ((bad, total, "records"), (lost, num_units, "parts of the source")):
        if count > max(max_bad_frac * whole, 1 if max_bad_frac and whole > 1 else 0):
            raise DataError(
                f"{count:,} of {whole:,} {what} are bad, more than {max_bad_frac:.2%}: {reasons}. {where} lists them. "
                f"Fix them, set the columns, the format or the encoding if they were guessed wrong, or allow more of them "
                f"(--max-bad). Nothing was published."
            )
