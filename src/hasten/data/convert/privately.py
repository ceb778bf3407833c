"""Replace identifiers and encrypt columns while converting, before anything is written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Note, ReadPart, Rows, Unit
from hasten.data.private.identifiers import Identifiers
from hasten.data.private.plan import PrivatePlan

_NAMED = re.compile(r"^unknown field .*(?=: it is not in)", re.DOTALL)
"""A reason that shows a key of the record, which can be content."""
ERASED = "rows of erased persons left out"


def privately(plan: PrivatePlan, unit: Unit, parts: Iterable[ReadPart]) -> Iterator[ReadPart]:
    """Yield the parts of a unit as the plan stores them, and notes with counts. Bad records lose their content.

    Raises:
        DataError: A column is in no list of the plan, cannot be replaced or encrypted, or a row has no person.
    """
    replacer, vault, num_rows = plan.replacer(), plan.vault(), 0
    for part in parts:
        if isinstance(part, Bad):
            yield replace(part, reason=_NAMED.sub("unknown field", part.reason), record=b"")
        elif isinstance(part, Note):
            yield part
        else:
            rows, counts = _replaced(plan, replacer, part)
            yield from (Note(f"identifiers replaced, {kind}", count) for kind, count in counts.items())
            if not plan.encrypted:
                yield rows
                continue
            people: list[Any] = rows[plan.person].to_pylist() if plan.person in rows else [None]
            if None in people:
                raise DataError(
                    f"{unit.path}: record {num_rows + people.index(None) + 1:,} of the part from {unit.start:,} has no "
                    f"{plan.person}, so no key could erase it. Add it, or name another column as person in the plan."
                )
            num_rows += len(people)
            kept = ~np.array(vault.erased(people), bool)
            if not kept.all():
                yield Note(ERASED, int((~kept).sum()))
                rows = {name: values.filter(pa.array(kept)) if isinstance(values, pa.Array) else values[kept]
                        for name, values in rows.items()}  # fmt: skip
            yield vault.sealed(rows, [name for name in plan.encrypted if name in rows], person=plan.person)


def _replaced(plan: PrivatePlan, replacer: Identifiers, part: Rows) -> tuple[dict[str, Any], Counter[str]]:
    """Return rows with tokens in place of identifiers, and how many there were of each kind."""
    rows: dict[str, Any] = (
        {name: part.column(name).combine_chunks() for name in part.column_names}
        if isinstance(part, pa.Table)
        else {name: value if isinstance(value, np.ndarray) else pa.array(value) for name, value in part.items()}
    )
    counts, known = Counter[str](), {*plan.identifiers, *plan.pseudonyms, *plan.encrypted, *plan.clear, plan.person}
    if unlisted := [name for name in rows if name not in known]:
        raise DataError(
            f"the column {unlisted[0]!r} is in no list of {plan.folder}/plan.toml: add it to identifiers, pseudonyms, "
            f"encrypted or clear, or leave it out (--columns)."
        )
    whole = {*plan.pseudonyms, plan.person} - ({plan.person} if plan.encrypted else set())
    for name in [name for name in rows if name in {*plan.identifiers, *whole}]:
        rows[name], found = replacer.replaced_in(name, rows[name], whole=name in whole)
        counts.update(found)
    return rows, counts
