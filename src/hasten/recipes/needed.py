"""Import packages of the recipes' extras on first use, and compile functions with Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar, cast

from hasten.core.errors import MachineError

Function = TypeVar("Function", bound=Callable[..., Any])


def needed(name: str, *, extra: str = "recipes") -> Any:
    """Import a module of an extra, or a Hasten module that depends on one.

    Args:
        name: The module.
        extra: The extra that installs it.

    Raises:
        MachineError: The package is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MachineError(
            f"this recipe needs the package {error.name}, which is not installed: pip install 'hasten[{extra}]'."
        ) from error


def kernel(function: Function, *, fuses: bool = False) -> Function:
    """Compile a function with Numba on its first call, with an on-disk cache. The compiled function releases the GIL.

    Division by zero gives infinity, as in NumPy. Floating-point operations are not reordered.

    Args:
        function: What to compile.
        fuses: Whether a product and a sum may be rounded once, where the processor can; last bits then depend on it.

    Raises:
        MachineError: Numba is not installed.
    """
    return cast(
        "Function",
        needed("numba").njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"} if fuses else False)(
            function
        ),
    )


@lru_cache(maxsize=32)
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `kernel`, for modules that must be importable without Numba.

    Raises:
        MachineError: Numba is not installed.
    """
    return kernel(function)
