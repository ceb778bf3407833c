"""Metric lines are written in order, none is lost, and every error is raised in the training."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import MachineError
from hasten.train.metrics_file import MetricsFile

both = pytest.mark.parametrize("background", [False, True])


@both
def test_all_lines_are_written_in_order(tmp_path: Path, background: bool) -> None:
    path = tmp_path / "lines"
    lines = MetricsFile(path, background=background)
    for number in range(1000):
        lines.write(lambda number=number: str(number))  # type: ignore[misc]  # bound now
    lines.flush()
    assert path.read_text().splitlines() == [str(number) for number in range(1000)]
    lines.close()
    lines.close()


def test_the_caller_does_not_wait_and_closing_writes_the_rest(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    go = threading.Event()

    def slow() -> str:
        assert go.wait(10)
        return "slow"

    lines = MetricsFile(tmp_path / "lines", background=True, count=lambda name: counts.update([name]))
    lines.write(slow)
    for number in range(50):
        lines.write(lambda number=number: str(number))  # type: ignore[misc]  # bound now
    assert (tmp_path / "lines").read_text() == ""
    go.set()
    lines.close()
    assert (tmp_path / "lines").read_text().split() == ["slow", *map(str, range(50))]
    assert counts == {"reports_in_background": 51}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@both
def test_a_full_disk_is_a_machine_error_at_once_and_at_the_end(background: bool) -> None:
    lines = MetricsFile(Path("/dev/full"), background=background)
    with pytest.raises(MachineError, match=r"Cannot write /dev/full: .*No space left.* Free some space"):
        _write_and_flush(lines)
    with pytest.raises(MachineError, match="No space left"):
        lines.close()


@both
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, background: bool) -> None:
    with pytest.raises(MachineError, match="choose another folder with --out"):
        MetricsFile(tmp_path / "missing" / "lines", background=background)


@pytest.mark.parametrize("call", ["write", "check", "flush", "close"])
def test_an_error_of_a_callback_is_raised_by_the_next_call(tmp_path: Path, call: str) -> None:
    def fail() -> str:
        raise ValueError("no")

    lines = MetricsFile(tmp_path / "lines", background=True)
    lines.write(fail)
    lines._pending[0].exception(10)
    with pytest.raises(ValueError, match=r"^no$"):
        lines.write(lambda: "x") if call == "write" else getattr(lines, call)()
    lines.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hasten-metrics")]


def _write_and_flush(lines: Any) -> None:
    lines.write(lambda: "x")
    lines.flush()
