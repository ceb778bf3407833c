"""The closure that an optimizer's step may be given: what is done in it belongs to the phases in it.

Lightning trains inside the closure: without this, its losses, prints and moved batches would count as the optimizer's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

from hasten.script.watch.record import OPTIMIZER, OTHER, Recorder

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def with_timed_closure(
    recorder: Recorder, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """The arguments of an optimizer's step, the optimizer first, with its closure timed; None where it has none."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _timed(recorder, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]) and _takes_closure(type(optimizer).step):
        return (args[0], _timed(recorder, args[1]), *args[2:]), kwargs
    return None


@functools.lru_cache(maxsize=8)
def _takes_closure(step: Any) -> bool:
    code = getattr(inspect.unwrap(step), "__code__", None)
    return code is not None and code.co_varnames[1:2] == ("closure",)


def _timed(recorder: Recorder, closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure)
    def closure_seam(*args: Any, **kwargs: Any) -> Any:
        if recorder.free() or not recorder.takes():  # in no step of an optimizer
            return closure(*args, **kwargs)
        recorder.leave(OTHER)
        found = closure(*args, **kwargs)
        if recorder.free():
            recorder.enter(OPTIMIZER)
        return found

    return closure_seam
