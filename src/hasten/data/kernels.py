"""Modules of kernels: compiled by Numba, once for a machine, and done without where that cannot be."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

_LOG = logging.getLogger(__name__)


def kernels_of(module: str, what: str) -> Any:
    """A module of kernels; None where Numba is not installed, or has no place to keep what it compiles.

    Args:
        module: Its name.
        what: What is done without it then, for the log.
    """
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:
        _LOG.info("%s without kernels: %s", what, error)
        return None
