"""The packages that text detection needs besides OpenCV, imported when they are first used."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from upshift.core.errors import MachineError


@lru_cache(maxsize=1)
def clipper() -> Any:
    """The module `pyclipper`.

    Raises:
        MachineError: It is not installed.
    """
    try:
        import pyclipper  # noqa: PLC0415  of the extra `recipes`
    except ImportError as error:
        raise _missing("pyclipper") from error
    return pyclipper


@lru_cache(maxsize=1)
def geometry() -> Any:
    """The module `shapely.geometry`.

    Raises:
        MachineError: It is not installed.
    """
    try:
        import shapely.geometry  # noqa: PLC0415  of the extra `recipes`
    except ImportError as error:
        raise _missing("shapely") from error
    return shapely.geometry


@lru_cache(maxsize=1)
def augmentations() -> Any:
    """The module `albumentations`, told not to ask the network for a newer version of itself.

    Raises:
        MachineError: It is not installed, or older than 2.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        import albumentations  # noqa: PLC0415  of the extra `recipes`
    except ImportError as error:
        raise _missing("albumentations") from error
    if int(albumentations.__version__.split(".")[0]) < 2:
        raise MachineError(
            f"albumentations {albumentations.__version__} is too old for the text-detection recipe, which needs 2.x: "
            f"pip install 'upshift[recipes]'."
        )
    return albumentations


@lru_cache(maxsize=32)
def compiled(function: Callable[..., Any]) -> Any:
    """A function as Numba compiles it, kept on disk from run to run; it lets go of Python's lock while it works.

    Raises:
        MachineError: Numba is not installed.
    """
    try:
        import numba  # noqa: PLC0415  of the extra `recipes`
    except ImportError as error:
        raise _missing("numba") from error
    return numba.njit(cache=True, nogil=True)(function)


def _missing(package: str) -> MachineError:
    return MachineError(f"the text-detection recipe needs {package}: pip install 'upshift[recipes]'.")
