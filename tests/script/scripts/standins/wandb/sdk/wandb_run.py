"""A run whose methods are slow."""

from __future__ import annotations

import time
from typing import Any


class Run:
    def log(self, values: dict[str, Any]) -> None:
        time.sleep(0.005)

    def log_artifact(self, name: str) -> str:
        return name
