"""Read decimal numbers as floats, unless a float cannot hold what is written."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_NOT_ZERO = re.compile(r"^-?[0.]*[1-9]")
_LONG = re.compile(r"^-?[0-9]{16,}")
"""Numbers with so many digits before the point that a float may round them to another whole number."""


def exact_float(text: str) -> float:
    """Return a number as a float. Digits after the point may be rounded, as programs print more of them than a float has.

    Raises:
        ValueError: The number is too large, too small, or has 16 or more digits before the point and would be rounded.
    """
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large for a float")
    if not value and _NOT_ZERO.match(text):
        raise ValueError("a number is too small for a float")
    if _LONG.match(text) and Decimal(text) != Decimal(value):
        raise ValueError("a number has more digits than a float")
    return value
