"""A curve in a terminal: columns of blocks, or of `#` where the terminal has no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " #"


def curve(values: Sequence[float], *, width: int = 60, height: int = 8, plain: bool = False) -> list[str]:
    """Lines of text that draw the values from left to right, the largest and the smallest beside the first and last line.

    Args:
        values: Finite numbers; several that fall into one column are averaged.
        width: Columns of the drawing, without the numbers beside it.
        height: Its lines.
        plain: Draw in ASCII.
    """
    if not values:
        return []
    columns = averaged(values, width)
    low, high = min(columns), max(columns)
    marks = ASCII if plain else BLOCKS
    steps = len(marks) - 1
    # The smallest value is one step high, so that a column is there wherever there is a value.
    heights = [1 + round((value - low) / (high - low) * (height * steps - 1)) if high > low else 1 for value in columns]
    rows = ["".join(marks[min(max(tall - steps * line, 0), steps)] for tall in heights) for line in reversed(range(height))]
    numbers = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"] if height > 1 else [f"{high:.4g}"]
    margin = max(map(len, numbers))
    return [f"{number:>{margin}} {row}".rstrip() for number, row in zip(numbers, rows, strict=True)]


def averaged(values: Sequence[float], width: int) -> list[float]:
    """At most `width` numbers, each the mean of as many neighbours as the others."""
    count = min(len(values), width)
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
