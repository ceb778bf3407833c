"""Judge whether a run printed what it prints without Hasten. Pure functions.

Lines are compared by their words, with numbers left out; then number by number, at each place in lines with the same words
where all plain runs agree with each other. If they differ there in one line, as losses of a script without a seed do, they
agree in others by chance, as any other run may or may not. Times, speeds and progress differ in every run: numbers with a
unit of time or after a word for one are not compared.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
TIMED = re.compile(
    r"(?:\b(?:time|elapsed|took|mfu|eta|sps|speed|duration|seconds|dt)\b[^\d\n]{0,12})[-+]?[\d.:]+"
    r"|[-+]?\d[\d.]*\s*(?:ms|us|s|sec|secs|seconds|it/s|s/it|min|h|m)\b(?:/\w+)?"
    r"|\d+:\d\d(?::\d\d)?(?:\.\d+)?|\b\d{4}-\d\d-\d\d\b|0x[0-9a-f]+",
    re.IGNORECASE,
)

Row = dict[str, Any]


def compare(plain: Sequence[str], other: str) -> Row:
    """Compare an output with those of several plain runs.

    Returns:
        `lines`: lines that all plain runs print equally often, by their words. `missing`: those that the other run lacks.
        `numbers`: numbers at places where all plain runs are equal. `equal`: those equal in the other run. `typical` and
        `largest`: median and largest relative difference of the others, None if there are none.
    """
    shaped = [_by_shape(text) for text in plain]
    found = _by_shape(other)
    common = [shape for shape, rows in shaped[0].items() if all(len(each.get(shape, ())) == len(rows) for each in shaped)]
    missing = [shape for shape in common if len(found.get(shape, ())) != len(shaped[0][shape])]
    differences, equal = [], 0
    for shape in common:
        if shape in missing:
            continue
        plain_columns = [list(zip(*each[shape], strict=True)) for each in shaped]
        for *ours, theirs in zip(*plain_columns, zip(*found[shape], strict=True), strict=True):
            if len(set(ours)) > 1:
                continue
            differing = [(a, b) for a, b in zip(ours[0], theirs, strict=True) if a != b]
            equal += len(theirs) - len(differing)
            differences += [_difference(float(a), float(b)) for a, b in differing]
    return {
        "lines": sum(len(shaped[0][shape]) for shape in common),
        "missing": missing[:5],
        "numbers": equal + len(differences),
        "equal": equal,
        "typical": median(differences) if differences else None,
        "largest": max(differences) if differences else None,
    }


def _by_shape(text: str) -> dict[str, list[list[str]]]:
    """Return the numbers of each line, by the words of the line."""
    found: defaultdict[str, list[list[str]]] = defaultdict(list)
    for line in re.split(r"[\r\n]+", text):
        kept = TIMED.sub("~", line).strip()
        if kept:
            found[re.sub(r"\s+", " ", NUMBER.sub("#", kept))].append(NUMBER.findall(kept))
    return dict(found)


def _difference(ours: float, theirs: float) -> float:
    if math.isnan(ours) or math.isnan(theirs) or math.isinf(ours) or math.isinf(theirs):
        return math.inf
    return abs(ours - theirs) / max(abs(ours), abs(theirs), 1e-12)
