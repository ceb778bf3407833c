"""What holds for all tests."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process that a test starts would compile all of Hasten
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two threads on one core would spin: 90 times slower. Before torch.
import torch

_HERE = Path(__file__).parent
_WORKER = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
if _WORKER and hasattr(os, "sched_setaffinity"):
    # Each worker, and every process that it starts, has a core of its own: what one test measures, another does not disturb.
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_CORES[int(_WORKER[1]) % len(_CORES)]})


# What one test compiled, another need not compile again; and what the processor can do need not be tried by compiling.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_HERE.parent / ".pytest_cache" / "inductor"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files of tests/tune and tests/train, which take the longest, so that both workers finish together."""
    items.sort(key=lambda item: item.path, reverse=True)


@pytest.fixture(autouse=True, scope="session")
def _scratch() -> Iterator[None]:
    """Delete temporary files with the session, those of killed processes too. The path is short: Ray keeps sockets there."""
    with tempfile.TemporaryDirectory(prefix="hasten-", ignore_cleanup_errors=True) as folder:
        before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), folder
        tempfile.tempdir = None
        yield
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Tests that are started in the background ignore SIGINT, and so would every process that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _freed_memory_is_returned() -> Iterator[None]:
    """A plan with lower precision changes this for a whole process, and later tests here measure memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hasten.optimizations.precision.keep_freed_memory", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are tiny here, and threads that wait for a busy core make tests a hundred times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
