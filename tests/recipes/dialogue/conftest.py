"""A prepared folder of generated conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.recipes.dialogue.prepare import prepare
from hasten.recipes.dialogue.synth import write


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a prepared folder of 150 conversations."""
    folder = tmp_path_factory.mktemp("dialogue")
    write(folder / "source", 150, 3, lambda: None)
    prepare(folder / "source", folder / "prepared", num_tokens=400, valid_frac=0.2, conversion={"processes": 1})
    return folder / "prepared"
