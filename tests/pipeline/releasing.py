"""Processes for tests of releases: one that changes releases until it is killed."""

from __future__ import annotations

import multiprocessing
import random
from contextlib import suppress
from multiprocessing.context import ForkContext
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from hasten.core.errors import DataError
from hasten.pipeline.model_folder import MODEL
from hasten.pipeline.release import Releases


def processes() -> ForkContext:
    """Return a context whose processes start at once, because torch is loaded already."""
    return multiprocessing.get_context("fork")


def load(releases: Releases, key: str = "") -> str:
    """Load the model that a reader gets, as a server would, and return its name."""
    folder = releases.choose(key)
    assert load_file(folder / MODEL)
    return folder.name


def change(folder: Path, runs: list[Path], seed: int, begun: Any) -> None:
    """Change releases at random, for ever."""
    releases, draw = Releases(folder), random.Random(seed)
    while True:
        begun.set()
        with suppress(DataError):  # nothing to go back to, in use already, ...
            what = draw.randrange(4)
            if what == 3:
                releases.rollback("chaos")
            elif what == 2:
                releases.promote()
            else:
                releases.promote(draw.choice(runs), share=0.5 if what else None)
