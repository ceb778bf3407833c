"""Albumentations as the text-detection recipe needs it, imported when it is first used."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from hasten.core.errors import MachineError
from hasten.recipes.needed import needed


@lru_cache(maxsize=1)
def augmentations() -> Any:
    """The module `albumentations`, told not to ask the network for a newer version of itself.

    Raises:
        MachineError: It is not installed, or older than 2.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    found = needed("albumentations")
    if int(found.__version__.split(".")[0]) < 2:
        raise MachineError(
            f"albumentations {found.__version__} is too old for the text-detection recipe, which needs 2.x: "
            f"pip install 'hasten[recipes]'."
        )
    return found
