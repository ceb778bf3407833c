"""Packages of the extra `recipes`, imported on first use, and functions that Numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar, cast

from hasten.core.errors import MachineError

Function = TypeVar("Function", bound=Callable[..., Any])


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


def kernel(function: Function) -> Function:
    """Compile a function by Numba when it is first called, cached on disk from run to run; it runs without the GIL.

    A division by zero gives infinity, as in NumPy. Nothing is reordered or fused: numbers are those that are written.

    Raises:
        MachineError: Numba is not installed.
    """
    return cast("Function", needed("numba").njit(cache=True, nogil=True, error_model="numpy")(function))


@lru_cache(maxsize=32)
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` for modules that are imported where Numba is not installed.

    Raises:
        MachineError: Numba is not installed.
    """
    return kernel(function)
