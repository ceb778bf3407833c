"""Processes for tests of releases: readers that load all the time, and one that changes releases until it is killed."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def _read(folder: Path, number: int, stop: Any, results: Any) -> None:
    loads, failed, names = 0, [], set()
    while not stop.is_set():
        try:
            names.add(load(Releases(folder), f"user-{number}-{loads}" if loads % 2 else ""))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(repr(error))
        loads += 1
    results.put((loads, failed[:3], names))


@contextmanager
def readers(folder: Path, found: list[tuple[int, list[str], set[str]]], *, count: int = 3) -> Iterator[None]:
    """Read a folder of releases in other processes during the block. Then `found` has loads, errors and models of each."""
    context = processes()
    stop, results = context.Event(), context.Queue()
    started = [context.Process(target=_read, args=(folder, number, stop, results)) for number in range(count)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        stop.set()
        found += [results.get(timeout=60) for _ in started]
        for process in started:
            process.join()


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
