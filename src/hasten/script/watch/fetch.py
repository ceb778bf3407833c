"""Time the loader: every batch passes `_BaseDataLoaderIter.__next__`."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import torch

from hasten.script.entry.launch import READY
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


class BatchCounts:
    """Counts the samples and tokens of training batches.

    Attributes:
        samples: Rows of the batches' first tensors.
        tokens: Numbers in them, if they are integers in rows and columns, as texts are.
    """

    def __init__(self) -> None:
        self.samples = self.tokens = 0
        self._iterator: Callable[[], Any] = _nobody

    def loader(self) -> Any:
        """Return the iterator of the loader in use; None if there is none."""
        return self._iterator()

    def begin(self, iterator: Any) -> None:
        """Note that a batch is taken from an iterator."""
        if self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)

    def add(self, batch: Any) -> None:
        """Count a batch."""
        tensor = first_tensor(batch)
        if tensor is not None and tensor.dim():
            self.samples += tensor.shape[0]
            if tensor.dim() == 2 and not tensor.is_floating_point():
                self.tokens += tensor.numel()


def first_tensor(batch: Any) -> torch.Tensor | None:
    """Return the first tensor in a batch of dictionaries, lists and tuples; None if there is none."""
    while not isinstance(batch, torch.Tensor):
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, list | tuple) and batch:
            batch = batch[0]
        else:
            return None
    return batch


class Fetch:
    """Times the fetching of batches, and splits it into making samples and collating them.

    Args:
        recorder: Receives the phases.
        trained: Receives whether gradients are enabled while the loop fetches.
        replay: Cached batches to return instead of the loader's; none by default.
        padding: Measures the padding of training batches, or trims it.
        folder: Where worker processes say when they are ready (`elsewhere`); None if they do not.

    Attributes:
        counts: Counts the training batches; None by default.
    """

    def __init__(
        self,
        recorder: Recorder,
        trained: Trained,
        replay: Replay | None = None,
        padding: Padding | None = None,
        folder: Path | None = None,
    ) -> None:
        self.recorder, self.trained, self.replay = recorder, trained, replay
        self.padding = padding or Padding()
        self._folder = folder
        self._collate_s = self._start_s = 0.0
        self._fetches = 0
        self._latest: Callable[[], Any] = lambda: None
        self.counts: BatchCounts | None = None

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
                return self._counted(iterator, original(iterator))
            if self._latest() is not iterator:
                self._latest = weakref.ref(iterator)
                self._watch_collate(iterator)
            self._collate_s = self._start_s = 0.0
            self._fetches += 1
            worker = self._awaited(iterator)
            asked = self._fetches <= BUSY_FIRST or self._fetches % BUSY_ONE_IN == 0
            on_core = _clock_of_fetching(iterator) if asked else _nobody
            busy_s = on_core()
            recorder.enter(FETCHED)
            began = perf_counter()
            try:
                if not grad:
                    return original(iterator)
                batch = original(iterator) if self.replay is None else self.replay.next(iterator, original)
                if self.padding.cuts:
                    return cut_padding(batch)
                self.padding.look(batch)
                return self._counted(iterator, batch)
            finally:
                seconds = recorder.leave(OTHER if grad else VALIDATION)
                if grad and busy_s is not None and (now_s := on_core()) is not None:
                    recorder.fetch_s += seconds
                    recorder.fetch_busy_s += min(now_s - busy_s, seconds)
                if worker is not None and (ready := self._ready(worker)) is not None:
                    self._note_start(min(max(ready - began, 0.0), seconds), times=0)
                if grad:
                    self._note(iterator, seconds - self._start_s)
                    recorder.has_workers |= bool(iterator._num_workers)  # noqa: SLF001 - the iterator is torch's

        return fetch_seam

    def wrap_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the methods that start and end worker processes. Also called while a batch is fetched, and by destructors."""
        begins = original.__name__ == "__init__"

        @functools.wraps(original)
        def start_seam(*args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if not recorder.here():
                return original(*args, **kwargs)
            started, free = perf_counter(), recorder.free()
            if free:
                recorder.enter(FETCHED)
            try:
                return original(*args, **kwargs)
            finally:
                if free:
                    recorder.leave()
                self._note_start(perf_counter() - started, times=int(begins))

        return start_seam

    def _note_start(self, seconds: float, *, times: int) -> None:
        self._start_s += seconds
        if (line := users_line()) is not None:
            self.recorder.note("start of workers", *line, seconds, times)

    def _awaited(self, iterator: Any) -> int | None:
        """Return the process id of the worker that makes the next batch if it is the worker's first; else None."""
        if self._folder is None or not iterator._num_workers:  # noqa: SLF001 - as above
            return None
        try:
            if iterator._rcvd_idx >= iterator._num_workers:  # noqa: SLF001 - as above
                return None
            return int(iterator._workers[iterator._task_info[iterator._rcvd_idx][0]].pid)  # noqa: SLF001 - as above
        except (AttributeError, KeyError, IndexError, TypeError):
            return None

    def _ready(self, worker: int) -> float | None:
        """Return when a worker was ready to make its first batch; None if it did not say so."""
        try:
            return float((self._folder or Path()).joinpath(f"{READY}-{worker}").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _counted(self, iterator: Any, batch: Any) -> Any:
        if self.counts is not None:
            self.counts.begin(iterator)
            self.counts.add(batch)
        return batch

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
