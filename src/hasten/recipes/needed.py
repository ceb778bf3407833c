"""Packages of the extra `recipes`, imported when they are first used, and functions that one of them compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from hasten.core.errors import MachineError


def needed(name: str) -> Any:
    """A module of the extra `recipes`, or one of ours that imports such.

    Raises:
        MachineError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MachineError(
            f"this recipe needs the package {error.name}, which is not installed: pip install 'hasten[recipes]'."
        ) from error


@lru_cache(maxsize=32)
def compiled(function: Callable[..., Any]) -> Any:
    """A function as Numba compiles it, kept on disk from run to run; it lets go of Python's lock while it works.

    Raises:
        MachineError: Numba is not installed.
    """
    return needed("numba").njit(cache=True, nogil=True)(function)
