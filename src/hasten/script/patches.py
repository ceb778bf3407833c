"""Wrap attributes of modules and classes behind one guard, and put back what was there.

What of ours fails inside a seam never reaches the script: it gets what the wrapped function gave, or what it gives now.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any, TypeVar

import torch

from hasten.script.source_lines import is_library

Seam = TypeVar("Seam", bound=Callable[..., Any])
Failed = Callable[[Exception], None]

_MISSING = object()
_DYNAMO_MODULES = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")


class Patches:
    """What was put in place of what; `restore` undoes it where ours is still the outermost.

    Args:
        failed: Told what of ours was raised in a seam, while it is handled.
    """

    def __init__(self, failed: Failed = lambda _: None) -> None:
        self._failed = failed
        self._placed: list[tuple[Any, str, Any, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any], *, guards: bool = True) -> None:
        """Replace `owner.name` by `make(what was there)`, guarded. `guards`: False where it guards itself, for speed."""
        own = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        ours = guarded(make, original, self._failed) if guards else make(original)
        if isinstance(ours, FunctionType):
            _hide_from_dynamo(ours)
        setattr(owner, name, ours)
        self._placed.append((owner, name, own, ours))
        _tell_dynamo(original, ours)

    def telling(self, failed: Failed) -> Patches:
        """The same, for seams whose failures somebody else must hear of first."""

        def both(error: Exception) -> None:
            failed(error)
            self._failed(error)

        part = Patches(both)
        part._placed, part._undo = self._placed, self._undo
        return part

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


class _Call(threading.local):
    """How the wrapped function ended in the seam that this thread is in: what it gave and what it raised; empty before that.

    None where this thread is in no seam: what is called later, from elsewhere, is not held.
    """

    ended: Any = None


def guarded(make: Callable[[Any], Any], original: Any, failed: Failed) -> Any:
    """A seam, `make(original)`, in which nothing of ours can be raised.

    Where it fails, the script gets what `original` gave or raised in it, or calls it now. What the user's code or `original`
    raised passes, and so does `StopIteration`, by which loaders of ours end.

    Args:
        make: Gives the seam for what it wraps.
        original: What it wraps; a class is not guarded.
        failed: Told of it; where this fails in turn, nobody is.
    """
    if isinstance(original, type):
        return make(original)
    call = _Call()
    theirs = _held(original, call)
    ours = make(theirs)

    def guard(*args: Any, **kwargs: Any) -> Any:
        before, call.ended = call.ended, ()
        try:
            return ours(*args, **kwargs)
        except Exception as error:
            if call.ended and error is call.ended[1]:  # not kept here: this frame is in its traceback, and both would stay
                raise
            ended = call.ended
            handle_error(error, failed)
        finally:
            call.ended = before
        try:
            if not ended:
                return original(*args, **kwargs)
            if ended[1] is not None:
                raise ended[1]
            return ended[0]
        finally:
            del ended

    for function in (theirs, ours, guard):
        _hide_from_dynamo(function)
    return functools.update_wrapper(guard, original)


def _held(original: Callable[..., Any], call: _Call) -> Callable[..., Any]:
    """The function, with a note of how it ended for the seam that calls it."""

    @functools.wraps(original)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        try:
            found = original(*args, **kwargs)
        except BaseException as error:
            if call.ended is not None:
                call.ended = (None, error)
            raise
        if call.ended is not None:
            call.ended = (found, None)
        return found

    return theirs


def harmless(function: Seam, failed: Failed) -> Seam:
    """A hook or a handler of ours, in which nothing of ours can be raised; it gives None then."""

    @functools.wraps(function)
    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    hook: Seam = guarded(lambda _: _plain(function), nothing, failed)
    return hook


def handle_error(error: Exception, failed: Failed) -> None:
    """Handle what was raised in a seam that guards itself; raises it where it is not ours."""
    if passes(error):
        raise error
    with suppress(Exception):
        failed(error)


def let_pass(error: Exception) -> Exception:
    """Mark an error that is the script's own, though it is raised in a seam of ours."""
    error.hasten_passes = True  # type: ignore[attr-defined]
    return error


def passes(error: Exception) -> bool:
    """Whether an error that left a seam is not ours: code of the user's was on the way, such as a signal's handler."""
    if isinstance(error, StopIteration) or getattr(error, "hasten_passes", False):
        return True
    trace = error.__traceback__
    while trace is not None:
        if not is_library(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for a method."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return plain


def _hide_from_dynamo(function: Any) -> None:
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
