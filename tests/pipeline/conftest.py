"""A disk of its own for tests that fill it, and finished runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.jobs import Plain
from tests.train.runs import trained

DISK_BYTES = 2**25


class Longer(Plain):
    """Gives other weights."""

    epochs = 3


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs. Tests do not change them."""
    folder = tmp_path_factory.mktemp("runs")
    return [trained(folder / "one"), trained(folder / "two", Longer())]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk in memory, of `DISK_BYTES`. Only root can mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        assert os.getuid() or not os.environ.get("HASTEN_CI"), done.stderr
        pytest.skip(f"this user cannot mount a disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, free: int) -> Path:
    """Write a file that leaves so many bytes free, in whole pages of 4 KiB. Remove it to free the disk."""
    ballast = disk / "ballast"
    facts = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize - free)
    return ballast
