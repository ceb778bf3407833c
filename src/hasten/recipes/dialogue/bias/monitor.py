"""Scan texts beside the training, in a process of its own, with exact counts even if that process is killed.

Batches are numbered and wait in a bounded queue. Twice a second, a thread gives those that wait to the worker process. It
adds the counts to a file, together with the numbers of the batches, and replaces the file atomically. Batches in flight when
the worker was killed are given to a new worker, which skips those that the file has already. The training can be restarted
likewise: batches that the file has are not counted again, and batches that were never counted are reported.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

from hasten.core.errors import CorruptError, DataError, MachineError
from hasten.core.files import remove_parts, write_atomically
from hasten.monitor.sink import QueuedSink
from hasten.recipes.dialogue.bias.patterns import BUILT_IN, load_patterns
from hasten.recipes.dialogue.bias.scan import Counts, Scanner

_MOST_STARTS = 3
_GATHER_S = 0.5
"""For so long, batches wait for others: writing the file takes longer than counting a batch."""
_EXIT_S = 5.0
Item = tuple[int, list[str], float]
"""Number, texts and time of a batch."""
Ranges = list[list[int]]


@dataclass(frozen=True)
class Report:
    """What the monitor has counted so far.

    Attributes:
        counts: The counts; None before the first batch.
        num_counted: Number of batches counted.
        waiting: Number of batches that wait or are being scanned.
        lost: Number of batches below the newest that were neither counted nor wait: dropped, or lost with a killed training.
        lag_s: Seconds from `put` to the count of the last batch.
        max_lag_s: The largest such lag.
    """

    counts: Counts | None
    num_counted: int
    waiting: int
    lost: int
    lag_s: float
    max_lag_s: float


class BiasMonitor:
    """Counts mentions of groups in batches of texts, in a worker process.

    Args:
        folder: Holds the file of counts, `bias.json`. Counts that an earlier run wrote there are continued.
        say: Called with one message if batches are lost.
        patterns: The file of patterns.

    Raises:
        CorruptError: The file of counts was modified.
        DataError: It was written with other patterns.
    """

    def __init__(self, folder: Path, *, say: Callable[[str], None] = print, patterns: Path = BUILT_IN) -> None:
        self.path = folder / "bias.json"
        ranges, counts = read_journal(self.path)
        digest = load_patterns(patterns).digest
        if counts is not None and counts.digest != digest:
            raise DataError(
                f"{self.path} was counted with other patterns ({counts.digest}, not {digest}): use a new folder."
            )
        self._next = ranges[-1][1] if ranges else 0
        self._lock = threading.Lock()
        self._num_put = self._num_done = 0
        self._lags = (0.0, 0.0)
        self._worker = _Worker(self.path, patterns, self._done)
        self._queue = QueuedSink(
            "bias", lambda: self._worker, say, loses="the bias monitor loses batches", gather_s=_GATHER_S
        )

    def put(self, texts: Sequence[str], *, number: int | None = None) -> None:
        """Queue a batch. Returns at once; if 256 batches wait, the oldest is dropped.

        Args:
            texts: The texts.
            number: Number of the batch, counted from 0, e.g. its step; None uses the next. One already counted is skipped.
        """
        with self._lock:
            number = self._next if number is None else number
            self._next = max(self._next, number + 1)
            self._num_put += 1
        self._queue.put((number, list(texts), monotonic()))

    def report(self) -> Report:
        """Return what has been counted, with lag and losses.

        Raises:
            CorruptError: The file of counts was modified.
        """
        with self._lock:
            ranges, counts = read_journal(self.path)
            num_counted = sum(end - start for start, end in ranges)
            waiting = max(0, self._num_put - self._num_done - self._queue.dropped)
            lost = max(0, self._next - num_counted - waiting)
            return Report(counts, num_counted, waiting, lost, *self._lags)

    def drain(self, timeout_s: float = 60.0) -> Report:
        """Wait until all batches are counted, and return the report. Call it before a gate decides.

        Raises:
            MachineError: They are not counted in time, or batches were lost: the counts are incomplete.
        """
        until = monotonic() + timeout_s
        while (report := self.report()).waiting and monotonic() < until:
            threading.Event().wait(0.01)
        if report.waiting or report.lost:
            raise MachineError(
                f"the bias counts are incomplete: {report.lost} batches were lost and {report.waiting} wait after "
                f"{timeout_s:g} s. Give the monitor fewer texts, or scan the data again, before a gate decides."
            )
        return report

    def close(self, timeout_s: float = 10.0) -> Report:
        """Count what waits, at most for this time, end the worker, and return the last report."""
        self._queue.end()
        self._queue.wait(monotonic() + timeout_s)
        self._worker.end()
        return self.report()

    def _done(self, items: Sequence[Item]) -> None:
        now = monotonic()
        with self._lock:
            self._num_done += len(items)
            self._lags = (now - items[-1][2], max(now - items[0][2], self._lags[1]))


class _Worker:
    """The worker process, started again if it is killed."""

    def __init__(self, path: Path, patterns: Path, done: Callable[[Sequence[Item]], None]) -> None:
        self._args, self._done = (path, patterns), done
        self._process: Any = None
        self._pipe: Connection | None = None
        self._ended = False
        self._last_exit: int | None = None

    def write(self, items: Sequence[Item]) -> None:
        """Have batches counted. If the worker is killed meanwhile, a new one gets them one at a time.

        Raises:
            MachineError: Some were not counted.
        """
        failures = self._count(items)
        if failures is None:
            failures = {}
            for item in items:
                failures |= self._try(item)
        if failures:
            number, why = next(iter(failures.items()))
            raise MachineError(f"batch {number} was not counted: {why}")
        self._done(items)

    def _try(self, item: Item) -> dict[int, str]:
        for _ in range(_MOST_STARTS):
            failures = self._count([item])
            if failures is not None:
                return failures
        exit_words = "was ended" if self._ended else f"ended {_MOST_STARTS} times, with exit code {self._last_exit}"
        return {item[0]: f"its worker process {exit_words}"}

    def _count(self, items: Sequence[Item]) -> dict[int, str] | None:
        """Return why batches were not counted, by number; None if the worker process has ended."""
        if self._ended:
            return None
        try:
            pipe = self._pipe or self._start()
            pipe.send([item[:2] for item in items])
            failures: dict[int, str] = pipe.recv()
        except (EOFError, OSError):
            self._stop()
            return None
        return failures

    def close(self) -> None:
        """End the process after its last batch."""
        self._stop()

    def end(self) -> None:
        """End the process for good, also while a batch is scanned."""
        self._ended = True
        self._stop()

    def _stop(self) -> None:
        """End the process. What the file has is whole at any time."""
        pipe, process, self._pipe, self._process = self._pipe, self._process, None, None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.join(_EXIT_S)
            process.kill()
            process.join()
            self._last_exit = process.exitcode

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, *self._args), name="hasten-bias", daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = ours
        return ours


def _work(pipe: Connection, path: Path, patterns: Path) -> None:
    """Count batches until the pipe is closed."""
    remove_parts(path)
    scanner = Scanner(load_patterns(patterns))
    ranges, counts = read_journal(path)
    while True:
        try:
            batches = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        failures: dict[int, str] = {}
        new, total = ranges, counts
        for number, texts in batches:
            try:
                if not _has(new, number):
                    found = scanner.count(texts)
                    new, total = _with(new, number), found if total is None else total + found
            except Exception as error:  # noqa: BLE001 - told by its class alone: the message might quote a text
                failures[number] = type(error).__name__
        try:
            if total is not None and new != ranges:
                write_atomically(path, json.dumps({"batches": new, "counts": json.loads(total.to_json())}))
            ranges, counts = new, total
        except OSError as error:
            failures |= {number: f"{path}: {error.strerror}" for number, _ in batches}
        pipe.send(failures)


def read_journal(path: Path) -> tuple[Ranges, Counts | None]:
    """Return the numbers of the batches in a file of counts, as half-open ranges, and their counts.

    Raises:
        CorruptError: The file was modified.
    """
    try:
        data = json.loads(path.read_bytes())
        ranges: Ranges = data["batches"]
        flat = [number for start, end in ranges for number in (start, end)]
        if not flat or not all(type(number) is int for number in flat) or flat != sorted(set(flat)) or flat[0] < 0:
            raise ValueError  # noqa: TRY301 - told below
        return ranges, Counts.from_json(json.dumps(data["counts"]))
    except FileNotFoundError:
        return [], None
    except (ValueError, TypeError, KeyError, CorruptError) as error:
        raise CorruptError(f"{path} is not a file of bias counts, or was modified: use a new folder.") from error


def _has(ranges: Ranges, number: int) -> bool:
    return any(start <= number < end for start, end in ranges)


def _with(ranges: Ranges, number: int) -> Ranges:
    """Return the ranges and a number, joined where they touch."""
    joined: Ranges = []
    for start, end in sorted([*ranges, [number, number + 1]]):
        if joined and joined[-1][1] == start:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    return joined
