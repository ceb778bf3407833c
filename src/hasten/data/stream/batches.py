"""What all streams have in common: epochs, workers, and a state that says what comes next.

A stream is a sequence of steps that follows from (seed, epoch) alone. Each step has a position, a few integers, and may be
made without the ones before it. So threads and worker processes share the steps out, and a state is a position.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from hasten.core.errors import DataError
from hasten.data.stream.times import StageTimes, Times

Position: TypeAlias = dict[str, Any]
"""Where an epoch stands: integers by name, or lists of them."""
_STATE = 1


class Step(NamedTuple):
    """One batch of an epoch. A tuple, since there is one for every batch.

    Attributes:
        task: What the batch is made of.
        after: The position when it is given out.
    """

    task: Any
    after: Position


class Batches(IterableDataset[Any]):
    """Batches in an order that any number of workers and ranks can take up anywhere.

    It is a loader of its own, and a torch `IterableDataset` whose items are batches: in a `DataLoader` give
    `batch_size=None`; its worker processes share the batches out and give them back in the same order. Worker processes
    that live for one epoch alone are told which by `set_epoch`; those that persist count by themselves, and hear of
    `set_epoch` too.

    Args:
        workers: Threads that prepare batches ahead; 0 prepares each when it is asked for.
        read_ahead: Batches each thread is ahead at most.

    Attributes:
        epoch: The epoch that is under way, or comes next.
    """

    def __init__(self, *, workers: int, read_ahead: int) -> None:
        if workers < 0 or read_ahead < 1:
            raise DataError(f"workers must be at least 0 and read_ahead at least 1, not {workers} and {read_ahead}.")
        self._workers, self._read_ahead = workers, read_ahead
        self._times = Times()
        self.epoch = 0
        # How often `set_epoch` was called, and with what: in memory that worker processes share.
        self._told = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._heard = 0
        self._position: Position = self._start()
        self._begin: Position | None = None
        self._skip: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch: from its start, or from where a loaded state says."""
        info = get_worker_info()
        return self._here() if info is None else self._in_worker(info.id, info.num_workers)

    @property
    def times(self) -> StageTimes:
        """Where the stream's time went until now, in this process."""
        return self._times.sums

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        if epoch < 0:
            raise DataError(f"an epoch is 0 or more, not {epoch}.")
        self._go_to(epoch)
        self._heard += 1
        self._told.copy_(torch.tensor([self._heard, epoch]))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: what comes next is the batch after the one that was given out last.

        The state holds under any number of workers and ranks, and is the same on every rank.
        """
        state = {"format": _STATE, "epoch": self.epoch, "position": dict(self._position), "stream": self._identity()}
        return state if self._skip is None else {**state, "skip": self._skip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says, with the next `for`.

        Raises:
            DataError: The state is of another stream: of another store, version or seed; the order would be another one.
        """
        if state.get("format") != _STATE or "stream" not in state:
            raise DataError(f"this is no state of a stream: it holds {', '.join(sorted(map(str, state))) or 'nothing'}.")
        mine = self._identity()
        for name in mine:
            if state["stream"].get(name) != mine[name]:
                hint = " (Store(path, version=...))" if name == "store_version" else ""
                raise DataError(
                    f"the state was taken with {name}={state['stream'].get(name)!r}, and this stream has {mine[name]!r}, "
                    f"so its "
                    f"order is another one: make the stream as it was{hint}."
                )
        self.epoch, self._position = int(state["epoch"]), dict(state["position"])
        self._begin, self._skip = dict(self._position), state.get("skip")

    @abstractmethod
    def _start(self) -> Position:
        """Where an epoch begins."""

    def _go_to(self, epoch: int) -> None:
        self.epoch, self._position, self._begin, self._skip = epoch, self._start(), None, None

    def _following(self, position: Position) -> Position:
        """Where the next epoch begins, after one that ended at a position."""
        return self._start()

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """What decides the order, but for the epoch."""

    @abstractmethod
    def _steps(self, epoch: int, position: Position) -> Iterator[Step]:
        """The steps of an epoch from a position on."""

    @abstractmethod
    def _making(self, epoch: int) -> AbstractContextManager[Callable[[Any], Any]]:
        """What makes the batch of a task, in any thread, while an epoch goes on."""

    def _here(self) -> Iterator[Any]:
        """What is left of an epoch; then the stream stands at the start of the next one."""
        epoch, start = self.epoch, self._begin or self._start()
        self._begin, self._skip, self._position = None, None, start
        with self._making(epoch) as make:
            steps = self._steps(epoch, start)
            batches = _prepared(make, steps, threads=self._workers, ahead=self._workers * self._read_ahead)
            before = perf_counter()
            try:
                for after, batch in batches:
                    self._times.waited(perf_counter() - before)
                    self._position = after
                    yield batch
                    del batch  # held no longer than whoever took it holds it: its memory is used again
                    before = perf_counter()
                self._times.waited(perf_counter() - before)
            finally:
                batches.close()
        self.epoch, self._position = epoch + 1, self._following(self._position)

    def _in_worker(self, worker: int, num_workers: int) -> Iterator[Any]:
        """This worker process's batches: every `num_workers`-th, so that the loader gives out all of them in order."""
        heard, told = self._told.tolist()
        if heard != self._heard:
            self._go_to(told)
            self._heard = heard
        epoch, start, skip = self.epoch, self._begin or self._start(), worker if self._skip is None else self._skip
        self._begin, self._skip, self._position = None, skip, start
        with self._making(epoch) as make:
            for step in self._steps(epoch, start):
                if skip:
                    skip -= 1
                    continue
                batch = make(step.task)
                skip = num_workers - 1
                self._position, self._skip = step.after, skip
                yield batch
        self.epoch, self._position, self._skip = epoch + 1, self._following(self._position), None


def _prepared(
    make: Callable[[Any], Any], steps: Iterable[Step], *, threads: int, ahead: int
) -> Generator[tuple[Position, Any]]:
    """The batches of steps in their order, each with the position after it.

    Threads help where `make` waits or releases the GIL, as reading files, decoding and large copies do. An error is raised
    where its batch would have come.

    Args:
        make: Makes the batch of a task.
        steps: Read as far ahead as batches are.
        threads: Those that make batches; 0 makes each when it is asked for.
        ahead: Batches being made or waiting, at most.
    """
    if not threads:
        for step in steps:
            yield step.after, make(step.task)
        return
    stop = threading.Event()

    def guarded(task: Any) -> Any:
        return None if stop.is_set() else make(task)

    waiting: deque[tuple[Position, Future[Any]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hasten-data")
    try:
        for step in steps:
            waiting.append((step.after, pool.submit(guarded, step.task)))
            if len(waiting) > ahead:
                yield _result(waiting)
        while waiting:
            yield _result(waiting)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _result(waiting: deque[tuple[Position, Future[Any]]]) -> tuple[Position, Any]:
    """The first batch, once it is made."""
    after, future = waiting.popleft()
    return after, future.result()


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process among the ranks: as given, or as torch.distributed knows it.

    Raises:
        DataError: One of the two is missing, or the rank is not among them.
    """
    if (rank is None) != (world_size is None):
        raise DataError(f"rank and world_size belong together, not rank={rank} and world_size={world_size}.")
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1
    if not 0 <= rank < world_size:
        raise DataError(f"rank must be from 0 to world_size - 1, not {rank} of {world_size}.")
    return rank, world_size
