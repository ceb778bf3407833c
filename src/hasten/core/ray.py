"""Load Ray, which the extra `ray` installs."""

from __future__ import annotations

import os
from typing import Any

from hasten.core.errors import MachineError


def load_ray() -> Any:
    """Return the module `ray`, set to send no usage statistics.

    Raises:
        MachineError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: PLC0415  of the extra `ray`
    except ImportError as error:
        raise MachineError("--ray needs Ray: pip install 'hasten[ray]'.") from error
    return ray
