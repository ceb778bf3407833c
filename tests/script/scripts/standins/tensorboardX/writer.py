"""Writes one line for each scalar, slowly."""

from __future__ import annotations

import time
from pathlib import Path


class SummaryWriter:
    def __init__(self, logdir: str | None = None, comment: str = "", *, log_dir: str | None = None) -> None:
        self.logdir = logdir or log_dir or "runs"
        Path(self.logdir).mkdir(parents=True, exist_ok=True)

    def add_scalars(self, tag: str, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.add_scalar(f"{tag}/{name}", value, step)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        time.sleep(0.005)
        with (Path(self.logdir) / "events").open("a") as file:
            file.write(f"{tag} {value} {step}\n")

    def close(self) -> None:
        return None
