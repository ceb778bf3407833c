"""Wrap attributes of modules and classes, and put back what was there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

_MISSING = object()
_DYNAMO_MODULES = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")


class Patches:
    """What was put in place of what; `restore` undoes it where ours is still the outermost."""

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Any, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(what was there)`."""
        own = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        ours = make(original)
        if isinstance(ours, FunctionType):
            _hide_from_dynamo(ours)
        setattr(owner, name, ours)
        self._placed.append((owner, name, own, ours))
        _tell_dynamo(original, ours)

    def also(self, undo: Callable[[], None]) -> None:
        """Have `undo` called once, when everything is put back."""
        self._undo.append(undo)

    def restore(self, *, owner: Any = None, keep: Any = None) -> None:
        """Put back what was there; what somebody else has wrapped meanwhile stays, and does nothing.

        Args:
            owner: Of this one alone; of all unless given.
            keep: Not of this one.
        """
        for item in reversed(self._placed[:]):
            holder, name, own, ours = item
            if holder is keep or (owner is not None and holder is not owner):
                continue
            self._placed.remove(item)
            if vars(holder).get(name) is not ours:
                continue
            if own is _MISSING:
                delattr(holder, name)
            else:
                setattr(holder, name, own)
            _tell_dynamo(ours, getattr(holder, name))
        while self._undo and owner is None and keep is None:
            self._undo.pop()()


def _hide_from_dynamo(function: FunctionType) -> None:
    """Let torch.compile step over our frame where it meets it, and go on with what it calls."""
    skip = getattr(getattr(torch._C._dynamo, "eval_frame", None), "skip_code", None)  # noqa: SLF001
    if skip is not None:
        skip(function.__code__)


def _tell_dynamo(before: Any, after: Any) -> None:
    """torch.compile knows `Module.__call__` by identity, to look straight at `forward`: keep what it knows in step."""
    for name in _DYNAMO_MODULES:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is before:
            module.unpatched_nn_module_call = after  # type: ignore[attr-defined]
