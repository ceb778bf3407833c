"""Packages of the extra `recipes`, imported when they are needed, and what to install where they are not there."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from upshift.core.errors import MachineError


def needed(name: str) -> Any:
    """A module of the extra `recipes`, or one of ours that imports such.

    Raises:
        MachineError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MachineError(
            f"target maps need the package {error.name}, which is not installed: pip install 'upshift[recipes]'."
        ) from error
