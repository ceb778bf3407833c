"""Wrap attributes of modules and classes behind a guard, and restore the originals.

An internal error inside a seam never reaches the script, which gets the result of the wrapped function instead.
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
    """Replaced attributes. `restore` puts the original back if Hasten's wrapper is still the outermost.

    Args:
        failed: Called with each error that Hasten raises in a seam, while the error is handled.
    """

    def __init__(self, failed: Failed = lambda _: None) -> None:
        self._failed = failed
        self._placed: list[tuple[Any, str, Any, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any], *, guards: bool = True) -> None:
        """Replace `owner.name` by `make(original)`, guarded. Pass `guards=False` if it guards itself, for speed."""
        own = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        ours = guarded(make, original, self._failed) if guards else make(original)
        if isinstance(ours, FunctionType):
            _hide_from_dynamo(ours)
        setattr(owner, name, ours)
        self._placed.append((owner, name, own, ours))
        _tell_dynamo(original, ours)

    def telling(self, failed: Failed) -> Patches:
        """Return a view on the same patches whose seams report failures to `failed` first."""

        def both(error: Exception) -> None:
            failed(error)
            self._failed(error)

        part = Patches(both)
        part._placed, part._undo = self._placed, self._undo
        return part

    @property
    def outermost(self) -> bool:
        """Whether no one has wrapped these attributes since, and so may put them back later."""
        return all(vars(owner).get(name) is ours for owner, name, _, ours in self._placed)

    def also(self, undo: Callable[[], None]) -> None:
        """Call `undo` once, when everything is restored."""
        self._undo.append(undo)

    def restore(self, *, owner: Any = None, keep: Any = None, name: str | None = None) -> None:
        """Restore the originals. Attributes that others have wrapped since then stay wrapped, but Hasten's part is inactive.

        Args:
            owner: Restore attributes of this object only; of all objects by default.
            keep: Skip attributes of this object.
            name: Restore only the attribute of this name.
        """
        for item in reversed(self._placed[:]):
            holder, attribute, own, ours = item
            if holder is keep or (owner is not None and holder is not owner) or (name not in (None, attribute)):
                continue
            self._placed.remove(item)
            if vars(holder).get(attribute) is not ours:
                continue
            if own is _MISSING:
                delattr(holder, attribute)
            else:
                setattr(holder, attribute, own)
            _tell_dynamo(ours, getattr(holder, attribute))
        while self._undo and owner is None and keep is None:
            self._undo.pop()()


class _Call(threading.local):
    """The outcome of the wrapped function in this thread's current seam: its result and its error; empty before the call.

    None if this thread is in no seam: later calls from elsewhere are not recorded.
    """

    ended: Any = None


def guarded(make: Callable[[Any], Any], original: Any, failed: Failed) -> Any:
    """Return the seam `make(original)`, guarded so that its own errors never reach the script.

    If the seam fails, the script gets the result or the error of `original`; if `original` was not called yet, it is called
    now. Errors of `original` and of the user's code propagate, and so does `StopIteration`, which ends Hasten's loaders.

    Args:
        make: Builds the seam from the function it wraps.
        original: The function to wrap. A class is not guarded.
        failed: Called with the error. An error of `failed` itself is ignored.
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
            if call.ended and error is call.ended[1]:  # no local reference: it would form a cycle with the traceback
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
    """Return the function, extended to record its outcome for the seam that calls it."""

    @functools.wraps(original)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if call.ended is not None:
                call.ended = (None, error)
            raise
        if call.ended is not None:
            call.ended = (result, None)
        return result

    return theirs


def harmless(function: Seam, failed: Failed) -> Seam:
    """Return a hook or handler whose own errors never reach the script. On failure it returns None."""

    @functools.wraps(function)
    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    hook: Seam = guarded(lambda _: _plain(function), nothing, failed)
    return hook


def handle_error(error: Exception, failed: Failed) -> None:
    """Handle an error that was raised in a seam that guards itself. Raises it again if it is not Hasten's."""
    if passes(error):
        raise error
    with suppress(Exception):
        failed(error)


def let_pass(error: Exception) -> Exception:
    """Mark an error as the script's own although a seam of Hasten raises it."""
    error.hasten_passes = True  # type: ignore[attr-defined]
    return error


def passes(error: Exception) -> bool:
    """Return whether an error is not Hasten's because user code was on the call path, such as a signal handler."""
    if isinstance(error, StopIteration) or getattr(error, "hasten_passes", False):
        return True
    trace = error.__traceback__
    while trace is not None:
        if not is_library(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that calls a method."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return plain


def _hide_from_dynamo(function: Any) -> None:
    """Make torch.compile skip Hasten's frame and continue with the functions it calls."""
    skip = getattr(getattr(torch._C._dynamo, "eval_frame", None), "skip_code", None)  # noqa: SLF001
    if skip is not None:
        skip(function.__code__)


def _tell_dynamo(before: Any, after: Any) -> None:
    """Update torch.compile's reference to `Module.__call__`, which it compares by identity to inline `forward`."""
    for name in _DYNAMO_MODULES:
        module = sys.modules.get(name)
        if module is not None and vars(module).get("unpatched_nn_module_call") is before:  # asking it would load it
            module.unpatched_nn_module_call = after  # type: ignore[attr-defined]
