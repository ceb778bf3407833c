"""Measure how fast folders can be written durably: few megabytes, each flushed to the disk, in turns, cleaned up."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

WRITE_BYTES = 4_000_000
ROUNDS = 5
MAX_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class WriteSpeed:
    """How fast a folder can be written.

    Attributes:
        mb_s: Median over the rounds, in MB/s (10^6 bytes).
        low: The slowest round.
        high: The fastest round.
        rounds: How many there were; 0 where the folder could not be written.
        why: Why it could not; empty where it could.
    """

    mb_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    rounds: int = 0
    why: str = ""


def measure_write_speeds(
    folders: Mapping[str, Path],
    *,
    size: int = WRITE_BYTES,
    rounds: int = ROUNDS,
    max_seconds: float = MAX_SECONDS,
) -> dict[str, WriteSpeed]:
    """Write a file to each folder, round after round, and give the speed of each.

    The order turns from round to round, so that what changes on the machine meanwhile falls on all alike. The first round
    finds nothing in place and is not counted where there is another.

    Args:
        folders: By any name; those that are not there are not made.
        size: Bytes of a file.
        rounds: Counted rounds at most.
        max_seconds: No round begins later than this.
    """
    content = os.urandom(size)  # a file system that compresses or finds duplicates gains nothing by it
    seconds: dict[str, list[float]] = {name: [] for name in folders}
    why = dict.fromkeys(folders, "")
    started = perf_counter()
    for turn in range(rounds + 1):
        if turn and perf_counter() - started > max_seconds:
            break
        for name in list(folders) if turn % 2 else reversed(list(folders)):
            if why[name]:
                continue
            try:
                seconds[name].append(_write_s(folders[name], content))
            except OSError as error:
                why[name] = str(error)
    return {name: _speed(size, seconds[name], why[name]) for name in folders}


def _write_s(folder: Path, content: bytes) -> float:
    """Seconds to write a new file of `content` until it is durable; the file is gone afterwards."""
    handle, name = tempfile.mkstemp(prefix=".hasten-speed-", dir=folder)
    try:
        started = perf_counter()
        with os.fdopen(handle, "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) or 0 :]
            os.fsync(file.fileno())
        return max(perf_counter() - started, 1e-9)
    finally:
        Path(name).unlink(missing_ok=True)


def _speed(size: int, seconds: Sequence[float], why: str) -> WriteSpeed:
    counted = seconds[1:] or seconds
    if why or not counted:
        return WriteSpeed(why=why or "there was no time to write")
    speeds = [size / 1e6 / value for value in counted]
    return WriteSpeed(mb_s=median(speeds), low=min(speeds), high=max(speeds), rounds=len(speeds))
