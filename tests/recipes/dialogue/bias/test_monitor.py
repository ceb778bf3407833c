import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.recipes.dialogue.bias.monitor import BiasMonitor, Ranges, _with, read_journal
from hasten.recipes.dialogue.bias.patterns import BUILT_IN
from hasten.recipes.dialogue.bias.scan import Scanner

BATCHES = [[f"she and {n} men", "an old woman", ""] * (n % 5 + 1) for n in range(60)]


def kill(monitor: BiasMonitor) -> int:
    """Kill the worker as soon as there is one."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        process = monitor._worker._process
        if process is not None and process.pid:
            os.kill(process.pid, signal.SIGKILL)
            return int(process.pid)
        time.sleep(0.001)
    raise AssertionError("no worker")


def whole() -> object:
    return Scanner().count([text for batch in BATCHES for text in batch])


@pytest.mark.slow
def test_counts_are_exact_though_the_worker_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    monitor = BiasMonitor(tmp_path, say=said.append)
    killed = set()
    for batch in BATCHES[:30]:
        monitor.put(batch)
    killed.add(kill(monitor))  # while it starts
    until = time.monotonic() + 30
    while monitor.report().num_counted < 5 and time.monotonic() < until:
        time.sleep(0.001)
    killed.add(kill(monitor))  # while it scans or writes
    for batch in BATCHES[30:]:
        monitor.put(batch)
    report = monitor.drain(60)
    assert (report.counts, report.num_counted, report.lost, said) == (whole(), 60, 0, [])
    assert 0 < report.lag_s <= report.max_lag_s
    assert len(killed) == 2
    assert monitor.close() == report


@pytest.mark.slow
def test_a_restarted_training_counts_no_batch_twice_and_reports_lost_ones(tmp_path: Path) -> None:
    first = BiasMonitor(tmp_path)
    for number in range(20):
        first.put(BATCHES[number], number=number)
    first.drain()
    first.close()
    again = BiasMonitor(tmp_path)
    for number in range(10, 50):  # from the last checkpoint
        again.put(BATCHES[number], number=number)
    for number in range(51, 60):  # batch 50 was never given
        again.put(BATCHES[number], number=number)
    with pytest.raises(MachineError, match="1 batches were lost and 0 wait"):
        again.drain()
    again.put(BATCHES[50], number=50)
    assert again.drain().counts == whole()
    assert read_journal(again.path)[0] == [[0, 60]]
    again.close()


@pytest.mark.slow
def test_dropped_batches_are_reported_and_no_gate_may_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.monitor.sink.MOST_WAITING", 4)
    said: list[str] = []
    monitor = BiasMonitor(tmp_path, say=said.append)
    for batch in BATCHES:
        monitor.put(batch)  # the worker has not started yet
    with pytest.raises(MachineError, match="batches were lost"):
        monitor.drain()
    report = monitor.close()
    assert report.waiting == 0
    assert report.lost >= 50
    assert report.num_counted + report.lost == 60
    assert len(said) == 1
    assert "loses batches" in said[0]


@pytest.mark.slow
def test_one_batch_that_cannot_be_counted_does_not_lose_those_beside_it(tmp_path: Path) -> None:
    said: list[str] = []
    monitor = BiasMonitor(tmp_path, say=said.append)
    for batch in [*BATCHES[:5], [b"bytes"], *BATCHES[5:]]:
        monitor.put(batch)  # type: ignore[arg-type]
    with pytest.raises(MachineError, match="1 batches were lost and 0 wait"):
        monitor.drain()
    report = monitor.close()
    assert (report.counts, report.num_counted, report.lost) == (whole(), 60, 1)
    assert len(said) == 1
    assert "batch 5 was not counted: AttributeError" in said[0]


@pytest.mark.slow
def test_a_worker_that_ends_by_itself_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    said: list[str] = []
    patterns = tmp_path / "patterns.toml"
    shutil.copy(BUILT_IN, patterns)
    monitor = BiasMonitor(tmp_path / "counts", say=said.append, patterns=patterns)
    patterns.write_text("not = [toml")
    monitor.put(BATCHES[0])
    report = monitor.close(30)
    assert (report.num_counted, report.lost) == (0, 1)
    assert "its worker process ended 3 times, with exit code 1" in said[0]


@pytest.mark.parametrize("text", ["", "[]", '{"batches": [[0, 0]], "counts": {}}', '{"batches": [], "counts": {}}'])
def test_a_modified_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bias.json").write_text(text)
    with pytest.raises(CorruptError, match="not a file of bias counts"):
        BiasMonitor(tmp_path)


def test_counts_of_other_patterns_are_not_continued(tmp_path: Path) -> None:
    counts = json.loads(Scanner().count(["she"]).to_json()) | {"digest": "0-other"}
    (tmp_path / "bias.json").write_text(json.dumps({"batches": [[0, 1]], "counts": counts}))
    with pytest.raises(DataError, match="other patterns"):
        BiasMonitor(tmp_path)


def test_ranges_join_where_they_touch() -> None:
    ranges: Ranges = []
    for number in (3, 0, 5, 1, 4, 2):
        ranges = _with(ranges, number)
    assert ranges == [[0, 6]]
    assert _with([[0, 2]], 5) == [[0, 2], [5, 6]]
