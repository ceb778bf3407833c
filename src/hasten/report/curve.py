"""Draw a curve in a terminal with block characters, or with `#` if the terminal has none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " #"


def curve(values: Sequence[float], *, width: int = 60, height: int = 8, plain: bool = False) -> list[str]:
    """Return lines of text that draw the values from left to right, with the largest and smallest value at the left edge.

    Args:
        values: Finite numbers. Values that share a column are averaged.
        width: Number of columns of the curve, without the numbers at the edge.
        height: Number of lines.
        plain: Draw in ASCII.
    """
    if not values:
        return []
    columns = averaged(values, width)
    low, high = min(columns), max(columns)
    marks = ASCII if plain else BLOCKS
    steps = len(marks) - 1
    # The smallest value is one step high, so that every value has a visible column.
    heights = [1 + round((value - low) / (high - low) * (height * steps - 1)) if high > low else 1 for value in columns]
    rows = ["".join(marks[min(max(tall - steps * line, 0), steps)] for tall in heights) for line in reversed(range(height))]
    numbers = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"] if height > 1 else [f"{high:.4g}"]
    margin = max(map(len, numbers))
    return [f"{number:>{margin}} {row}".rstrip() for number, row in zip(numbers, rows, strict=True)]


def averaged(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` numbers, each the mean of an equal share of the values."""
    count = min(len(values), width)
    edges = [round(column * len(values) / count) for column in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
