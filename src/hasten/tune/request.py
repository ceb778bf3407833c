"""Names of techniques as a person gives them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from hasten.core.errors import PlanError
from hasten.optimizations import catalogue


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no technique has.

    Raises:
        PlanError: Names it, and the nearest there is.
    """
    known = list(catalogue())
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "`hasten doctor --catalogue` lists all."
            raise PlanError(f"there is no technique {name!r}. {hint}")
