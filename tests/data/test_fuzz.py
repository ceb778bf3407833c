"""Damaged files of every format are read or refused: see `fuzz.py`. HASTEN_FUZZ_S is the time for each format in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.sources import BOXES, CUBES, OUTLINES, STORES

SECONDS = float(os.environ.get("HASTEN_FUZZ_S", "10"))
SEED = str(int(time.time())) if "HASTEN_FUZZ_S" in os.environ else "1000000"
"""The short run is always the same; a long one always differs."""


def fuzz(*arguments: str, seconds: float) -> None:
    """Run in a process of its own, which a crash ends and whose memory is limited."""
    command = [sys.executable, "-m", "tests.data.fuzz", *arguments]
    root = Path(__file__).parents[2]
    made = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    assert made.returncode == 0, f"{made.stdout[-2_000:]}\n{made.stderr[-10_000:]}"


@pytest.mark.slow
def test_damaged_sources_are_read_or_refused() -> None:
    fuzz("--inputs", "8", seconds=100)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(SECONDS + 90)
@pytest.mark.parametrize("name", [*STORES, *BOXES, *OUTLINES, *CUBES])
def test_many_damaged_sources_are_read_or_refused(name: str) -> None:
    fuzz(name, "--seconds", str(SECONDS), "--seed", SEED, seconds=SECONDS + 60)
