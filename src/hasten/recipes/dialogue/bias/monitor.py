"""Scan texts beside the training, in a process of its own, with exact counts even if that process is killed.

Batches are numbered and wait in a bounded queue. A thread gives them to the worker process one at a time. The worker adds
the counts to a file, together with the number of the batch, and replaces the file atomically. A batch in flight when the
worker was killed is given to a new worker, which skips it if the file has it already. The training can be restarted
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
_EXIT_S = 5.0
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
        self._queue = QueuedSink("bias", lambda: self._worker, say, loses="the bias monitor loses batches")

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

    def _done(self, put_s: float) -> None:
        lag = monotonic() - put_s
        with self._lock:
            self._num_done += 1
            self._lags = (lag, max(lag, self._lags[1]))


class _Worker:
    """The worker process, started again if it is killed."""

    def __init__(self, path: Path, patterns: Path, done: Callable[[float], None]) -> None:
        self._args, self._done = (path, patterns), done
        self._process: Any = None
        self._pipe: Connection | None = None
        self._ended = False

    def write(self, item: tuple[int, list[str], float]) -> None:
        """Have a batch counted.

        Raises:
            MachineError: The worker was killed three times on this batch.
        """
        number, texts, put_s = item
        for _ in range(_MOST_STARTS):
            if self._ended:
                break
            try:
                pipe = self._pipe or self._start()
                pipe.send((number, texts))
                failure = pipe.recv()
            except (EOFError, OSError):
                self._stop()
                continue
            if failure:
                raise MachineError(f"batch {number} was not counted: {failure}")
            self._done(put_s)
            return
        raise MachineError(
            f"batch {number} was not counted: its worker process was ended, or was killed {_MOST_STARTS} times"
        )

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
            number, texts = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        failure = ""
        try:
            if not _has(ranges, number):
                found = scanner.count(texts)
                new, total = _with(ranges, number), found if counts is None else counts + found
                write_atomically(path, json.dumps({"batches": new, "counts": json.loads(total.to_json())}))
                ranges, counts = new, total
        except Exception as error:  # noqa: BLE001 - told by its class alone: the message might quote a text
            failure = type(error).__name__
        pipe.send(failure)


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
