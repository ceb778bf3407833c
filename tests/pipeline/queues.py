"""Queues for tests: a real PostgreSQL and Dagster's real daemon, in folders that the system user postgres can enter."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from hasten.pipeline import queue
from hasten.pipeline.lease import FOLDER


@contextmanager
def new_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder for a queue, with leases of its own beside it. All its processes are killed in the end."""
    if not (shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        assert not os.environ.get("HASTEN_CI"), "CI must have PostgreSQL installed"
        pytest.skip("there is no PostgreSQL")
    with tempfile.TemporaryDirectory(prefix="hasten-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        monkeypatch.setenv(FOLDER, f"{name}/leases")
        try:
            yield Path(name, "queue")
        finally:
            kill(processes(Path(name)))


def processes(folder: Path, words: str = "") -> list[psutil.Process]:
    """Return the processes of a test: all of them, or those with these words in their command lines."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            mine = process.environ().get(FOLDER, "").startswith(str(folder)) or f"{folder}/" in line
            if mine and words in line and process.pid != os.getpid():
                found.append(process)
    return found


def kill(found: list[psutil.Process]) -> None:
    """Kill processes, and wait until they have ended."""
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=20)


def until(folder: Path, ready: Callable[[list[queue.Entry]], bool], seconds: float = 200) -> list[queue.Entry]:
    """Wait until the runs of a queue are in a state."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = queue.entries(folder)
        if ready(found):
            return found
        time.sleep(1.0)
    raise AssertionError([(entry.pipeline, entry.state, entry.error) for entry in found])


def all_ended(found: list[queue.Entry]) -> bool:
    return not any(entry.unfinished for entry in found)
