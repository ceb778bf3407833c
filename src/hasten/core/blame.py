"""Find out which technique of a plan caused an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from hasten.core.card import Trait
from hasten.core.live import Technique

_TECHNIQUES = "hasten.optimizations."
_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
_SIXTEEN_BIT = ("bfloat16", "float16", "half", "dtype", "scalartype")


def blamed(error: BaseException, techniques: Iterable[Technique]) -> list[str]:
    """Return the names of the techniques that certainly caused an error; empty if that is not known.

    Args:
        error: The error, with its traceback.
        techniques: The techniques that were applied.
    """
    items = list(techniques)
    modules = [str(names.get("__name__", "")) for names in _globals(error.__traceback__)]
    named = {module.removeprefix(_TECHNIQUES) for module in modules if module.startswith(_TECHNIQUES)}
    if found := [item.card.name for item in items if type(item).__module__.removeprefix(_TECHNIQUES) in named]:
        return found
    if any(module.startswith(_COMPILER) for module in modules):
        return [item.card.name for item in items if Trait.COMPILES in item.card.traits]
    if any(word in str(error).lower() for word in _SIXTEEN_BIT):
        return [item.card.name for item in items if Trait.LOWER_PRECISION in item.card.traits]
    return []


def _globals(trace: TracebackType | None) -> Iterator[dict[str, Any]]:
    while trace is not None:
        yield trace.tb_frame.f_globals
        trace = trace.tb_next
