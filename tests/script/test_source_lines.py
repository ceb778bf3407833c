"""A profile names lines of the user's code, regardless of libraries in between."""

from __future__ import annotations

import inspect
import logging
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hasten.script.source_lines import is_library, reading_line, users_line
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.record import LOOK_S, Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

INSTALLED = str(Path(sysconfig.get_path("purelib")) / "somelib" / "loops.py")
LIBRARY = """
import time

def call(function):
    return function()

def value_of(tensor):
    return tensor.item()

class Samples(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(WAIT)
        return torch.zeros(2)
"""


def library() -> dict[str, Any]:
    """Return the content of an installed module."""
    found: dict[str, Any] = {"__name__": "somelib.loops", "Dataset": Dataset, "torch": torch, "WAIT": LOOK_S}
    exec(compile(LIBRARY, INSTALLED, "exec"), found)  # noqa: S102 - a module without a file
    return found


def here() -> int:
    """Return the calling line."""
    return inspect.stack()[1].lineno


def test_what_belongs_to_a_library() -> None:
    assert is_library(INSTALLED)
    assert is_library(logging.__file__)
    assert is_library(torch.__file__)
    assert is_library("<frozen runpy>")
    assert not is_library(__file__)
    assert not is_library("<stdin>")


def test_the_users_line_is_found_behind_a_library() -> None:
    call = library()["call"]
    assert call(lambda: call(lambda: users_line(1))) == (__file__, here())


def test_a_value_that_a_library_reads_and_its_samples_are_told_at_the_users_line() -> None:
    found = library()
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained()))
    loader = DataLoader(found["Samples"](), batch_size=2)
    seams.install(excepthook=False)
    try:
        for _ in loader:
            loop = here() - 1
        found["value_of"](torch.ones(()))
        read = here() - 1
    finally:
        seams.remove()
    assert reading_line(loader.dataset) is None
    places = {what: (file, line) for what, file, line in recorder.places}
    assert places["loader"] == (__file__, loop)
    assert places[".item()"] == (__file__, read)
