"""Lines written at once or by a thread: nothing lost, nothing hidden."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import HastenError, JobError, MachineError
from hasten.train.lines import BackgroundLines, PlainLines


@pytest.mark.parametrize("kind", [PlainLines, BackgroundLines])
def test_lines_come_in_order_and_all(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "lines"
    lines = kind(path)
    for number in range(1000):
        lines.write(lambda number=number: str(number))
    lines.flush()
    assert path.read_text().splitlines() == [str(number) for number in range(1000)]
    lines.close()
    lines.close()


def test_a_full_queue_makes_the_caller_wait_is_counted_and_drops_nothing(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    go, begun = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go.wait(10)
        return "slow"

    lines = BackgroundLines(tmp_path / "lines", lambda name: counts.update([name]), size=2)
    lines.write(slow)
    assert begun.wait(10)
    lines.write(lambda: "1")
    lines.write(lambda: "2")
    assert counts["report_waits"] == 0
    threading.Timer(0.1, go.set).start()
    lines.write(lambda: "3")
    assert counts["report_waits"] == 1
    lines.close()
    assert (tmp_path / "lines").read_text().split() == ["slow", "1", "2", "3"]
    assert counts["reports_in_background"] == 4


def test_closing_writes_what_is_left(tmp_path: Path) -> None:
    lines = BackgroundLines(tmp_path / "lines")
    for _ in range(50):
        lines.write(lambda: "x")
    lines.close()
    assert len((tmp_path / "lines").read_text().split()) == 50


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("kind", [PlainLines, BackgroundLines])
def test_a_full_disk_is_an_error_of_ours_at_once_and_at_the_end(kind: Any) -> None:
    lines = kind(Path("/dev/full"))
    with pytest.raises(MachineError, match=r"Cannot write /dev/full: .*No space left.* Make room"):
        _write_and_flush(lines)
    with pytest.raises(MachineError, match="No space left"):
        lines.close()


@pytest.mark.parametrize("kind", [PlainLines, BackgroundLines])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(MachineError, match="choose another folder with --out"):
        kind(tmp_path / "missing" / "lines")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [(ValueError("no"), HastenError, "raised ValueError: no. Mend `on_report`"), (JobError("mine"), JobError, "^mine$")],
)
def test_what_a_callback_raises_reaches_the_caller(tmp_path: Path, error: Any, kind: Any, words: Any) -> None:
    def fail() -> str:
        raise error

    lines = BackgroundLines(tmp_path / "lines")
    lines.write(fail)
    with pytest.raises(kind, match=words):
        lines.flush()
    with pytest.raises(kind, match=words):
        lines.check()
    with pytest.raises(kind, match=words):
        lines.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "hasten-lines"]


def test_a_caller_that_waits_for_room_learns_of_the_error(tmp_path: Path) -> None:
    go, begun = threading.Event(), threading.Event()

    def fail() -> str:
        begun.set()
        assert go.wait(10)
        raise OSError(5, "input/output error")

    lines = BackgroundLines(tmp_path / "lines", size=1)
    lines.write(fail)
    assert begun.wait(10)
    lines.write(lambda: "waits")
    threading.Timer(0.05, go.set).start()
    with pytest.raises(HastenError, match="input/output error"):
        _write_for_ever(lines)
    with pytest.raises(HastenError, match="input/output error"):
        lines.close()
    assert os.path.getsize(tmp_path / "lines") == 0  # noqa: PTH202


def _write_and_flush(lines: Any) -> None:
    lines.write(lambda: "x")
    lines.flush()


def _write_for_ever(lines: Any) -> None:
    while True:
        lines.write(lambda: "x")
