"""Keep Hasten's imports and the user's imports independent of each other.

A project may have a `statistics.py`, a `resource.py` or a `profile.py`. Hasten's modules must import Python's version, and
the project must still import its own, in any order. This module imports only modules that Python has already loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

OURS = "hasten"
STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep  # noqa: PTH100, PTH120 - compared with file names
FIRST = [STDLIB, f"{STDLIB}lib-dynload"]


class OwnImports:
    """Meta path finder that runs Hasten's modules with the standard library first on the path.

    Attributes:
        gives_back: Release the names of all standard modules that Hasten loads. A script may later add a folder to the path
            that holds a module of such a name.
    """

    def __init__(self) -> None:
        self.gives_back = False
        self._kept: dict[str, ModuleType] = {}
        self._loading = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a Hasten module; None for any other module."""
        if not name.startswith(f"{OURS}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._running(spec.loader.exec_module)  # type: ignore[method-assign, assignment]
        return spec

    def _running(self, run: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            if self._loading:  # one Hasten module imports another
                run(module)
                return
            self._loading = True
            try:
                with self._undisturbed():
                    run(module)
            finally:
                self._loading = False

        return exec_module

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Put the standard library first and hide the user's modules with standard names. Restore both afterwards."""
        hidden = _take_out(_covered() | {_top(name) for name in self._kept})
        sys.modules.update(self._kept)  # all Hasten modules share one copy of each
        known = {_top(name) for name in sys.modules} - {_top(name) for name in self._kept}
        sys.path[:0] = FIRST
        try:
            yield
        finally:
            if sys.path[: len(FIRST)] == FIRST:
                del sys.path[: len(FIRST)]
            new = {_top(name) for name in sys.modules} - known
            self._kept |= _take_out({name for name in new if name in hidden or name in self._kept or self._is_free(name)})
            sys.modules.update(hidden)

    def _is_free(self, name: str) -> bool:
        """Whether to release a name that Hasten imported, because the user's path leads to another module, or may later."""
        if name == OURS or name.startswith("_"):
            return False
        if self.gives_back and name in sys.stdlib_module_names:
            return True
        ours = getattr(sys.modules.get(name), "__file__", None)
        theirs = PathFinder.find_spec(name, sys.path)
        return ours is not None and theirs is not None and theirs.origin not in (ours, None)


def install(*, gives_back: bool = False) -> None:
    """Load all Hasten modules with `OwnImports` from now on. `gives_back`: see `OwnImports`."""
    finder = next((item for item in sys.meta_path if isinstance(item, OwnImports)), None)
    if finder is None:
        finder = OwnImports()
        sys.meta_path.insert(0, finder)
    finder.gives_back |= gives_back


def _top(name: str) -> str:
    return name.partition(".")[0]


def _take_out(tops: Collection[str]) -> dict[str, ModuleType]:
    """Remove top-level packages and their submodules from `sys.modules`, and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _top(name) in tops}


def _covered() -> set[str]:
    """Return the names of standard modules that are loaded from elsewhere, such as the user's project."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sys.stdlib_module_names}
    own = os.path.realpath(STDLIB) + os.sep
    return {
        name
        for name, file in files.items()
        if file and not file.startswith(STDLIB) and not os.path.realpath(file).startswith(own)
    }
