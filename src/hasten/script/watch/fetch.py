"""Time the loader: every batch passes `_BaseDataLoaderIter.__next__`."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

import torch

from hasten.script.source_lines import is_library, line_of, reading_line, users_line
from hasten.script.watch.padding import Padding, cut_padding
from hasten.script.watch.record import FETCHED, OTHER, VALIDATION, Recorder
from hasten.script.watch.replay import Replay
from hasten.script.watch.trained import Trained

BUSY_FIRST, BUSY_ONE_IN = 16, 16
"""CPU time is measured for this number of first fetches, then for one in this number. Each measurement is a system call."""
_CPU_CLOCK_OF_PROCESS = 2
"""Linux's `clock_getcpuclockid`: the id of the clock of a process's CPU time is `(~pid << 3) | 2`."""


def _nobody() -> None:
    return None


def _clock_of_fetching(iterator: Any) -> Callable[[], float | None]:
    """Return a function for the CPU seconds of the next batch's producer: this thread or the worker that it waits for.

    The function returns None if there is no such worker or if the system does not tell its CPU time.
    """
    if not iterator._num_workers:  # noqa: SLF001 - torch has no public name for it
        return thread_time
    try:
        worker = iterator._task_info[iterator._rcvd_idx][0]  # noqa: SLF001 - as above
        clock = (~iterator._workers[worker].pid << 3) | _CPU_CLOCK_OF_PROCESS  # noqa: SLF001 - as above
    except (AttributeError, KeyError, IndexError, TypeError):
        return _nobody

    def on_core() -> float | None:
        try:
            return time.clock_gettime(clock)
        except OSError:  # the worker has ended
            return None

    return on_core if sys.platform == "linux" else _nobody


class Fetch:
    """Times the fetching of batches, and splits it into making samples and collating them.

    Args:
        recorder: Receives the phases.
        trained: Receives whether gradients are enabled while the loop fetches.
        replay: Cached batches to return instead of the loader's; none by default.
        padding: Measures the padding of training batches, or trims it.
    """

    def __init__(
        self, recorder: Recorder, trained: Trained, replay: Replay | None = None, padding: Padding | None = None
    ) -> None:
        self.recorder, self.trained, self.replay = recorder, trained, replay
        self.padding = padding or Padding()
        self._collate_s = 0.0
        self._fetches = 0
        self._latest: Callable[[], Any] = lambda: None

    def wrap(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__next__`."""

        @functools.wraps(original)
        def fetch_seam(iterator: Any) -> Any:
            recorder = self.recorder
            if not recorder.free():
                return original(iterator)
            grad = torch.is_grad_enabled()
            self.trained.fetched_with_grad = grad
            if recorder.light and grad:
                recorder.passed += 1
                return original(iterator)
            if self._latest() is not iterator:
                self._latest = weakref.ref(iterator)
                self._watch_collate(iterator)
            self._collate_s = 0.0
            self._fetches += 1
            asked = self._fetches <= BUSY_FIRST or self._fetches % BUSY_ONE_IN == 0
            on_core = _clock_of_fetching(iterator) if asked else _nobody
            busy_s = on_core()
            recorder.enter(FETCHED)
            try:
                if not grad:
                    return original(iterator)
                batch = original(iterator) if self.replay is None else self.replay.next(iterator, original)
                if self.padding.cuts:
                    return cut_padding(batch)
                self.padding.look(batch)
                return batch
            finally:
                seconds = recorder.leave(OTHER if grad else VALIDATION)
                if grad and busy_s is not None and (now_s := on_core()) is not None:
                    recorder.fetch_s += seconds
                    recorder.fetch_busy_s += min(now_s - busy_s, seconds)
                if grad:
                    self._note(iterator, seconds)
                    recorder.has_workers |= bool(iterator._num_workers)  # noqa: SLF001 - the iterator is torch's

        return fetch_seam

    def _watch_collate(self, iterator: Any) -> None:
        """Time the user's collate function if the iterator works in this process. Patches the iterator's own fetcher."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        collate = getattr(fetcher, "collate_fn", None)
        line = line_of(collate)
        if fetcher is None or collate is None or line is None or is_library(line[0]) or hasattr(collate, "hasten_seam"):
            return

        def collate_seam(samples: Any) -> Any:
            if not self.recorder.active:
                return collate(samples)
            started = perf_counter()
            try:
                return collate(samples)
            finally:
                self._collate_s += perf_counter() - started

        collate_seam.hasten_seam = True  # type: ignore[attr-defined]
        collate_seam.hasten_collate = collate  # type: ignore[attr-defined]
        collate_seam.line = line  # type: ignore[attr-defined]
        fetcher.collate_fn = collate_seam

    def _note(self, iterator: Any, seconds: float) -> None:
        """Record where the time went: the user's dataset, the user's collate function, or torch inside the user's loop."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        line = getattr(getattr(fetcher, "collate_fn", None), "line", None) if self._collate_s else None
        if line is not None:  # otherwise the timed collate belongs to a loader inside this loader's dataset
            if weight := self.recorder.stands_for:
                self.recorder.note("collate", line[0], line[1], self._collate_s * weight, weight)
            seconds -= self._collate_s
        worth = self.recorder.worth_a_look("fetched", seconds)
        if worth is None:
            return
        times, seconds = worth
        reading = reading_line(iterator._dataset)  # noqa: SLF001 - torch has no public name for it
        if reading is not None:
            self.recorder.note("dataset", *reading, seconds, times)
        elif (loop := users_line()) is not None:
            self.recorder.note("loader", *loop, seconds, times)
