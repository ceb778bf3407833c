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
from torch.utils.data._utils.worker import WorkerInfo

from hasten.core.errors import DataError
from hasten.data.stream.times import StageTimes, Times

Position: TypeAlias = dict[str, Any]
"""Where an epoch stands: integers by name, or lists of them."""
_STATE = 1
_MOST_WORKERS = 1024
"""Of a DataLoader."""
_MARKS, _EPOCH_BITS = 1 << 13, 25
"""A loader's mark, and an epoch's number, fit a word of 63 bits."""


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
    `batch_size=None`; its worker processes share the batches out and give them back in the same order. Each `for` is the
    next epoch, also after one that was broken off, and whether or not the worker processes live longer than an epoch:
    they count epochs in shared memory. `set_epoch` goes to any other.

    Args:
        workers: Threads that prepare batches ahead; 0 prepares each when it is asked for.
        read_ahead: Batches each thread is ahead at most.

    Attributes:
        epoch: The epoch that is under way in this process, or comes next.
    """

    def __init__(self, *, workers: int, read_ahead: int) -> None:
        if workers < 0 or read_ahead < 1:
            raise DataError(f"workers must be at least 0 and read_ahead at least 1, not {workers} and {read_ahead}.")
        self._workers, self._read_ahead = workers, read_ahead
        self._times = Times()
        self.epoch = 0
        # In memory that worker processes share: how often this process said where to go on, the epoch, and whether a state
        # was loaded. Then what each worker process has begun since.
        self._told = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._begun = torch.full((_MOST_WORKERS,), -1, dtype=torch.int64).share_memory_()
        self._heard = 0
        self._under_way = False  # whether `epoch` was begun, and is not over
        # Of a worker process that counts by itself: its first epoch, counted from the one that was told.
        self._first: int | None = None
        self._position: Position = self._start()
        self._begin: Position | None = None
        self._skip: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch: from its start, or from where a loaded state says."""
        info = get_worker_info()
        if info is None:
            return self._here()
        self._begin_in_worker(info)
        start, skip = self._take()
        self._skip = info.id if skip is None else skip
        return self._in_worker(self.epoch, start, self._skip, info.num_workers)

    def _take(self) -> tuple[Position, int | None]:
        """Begin the epoch where it, or a loaded state, starts."""
        start, skip = self._begin or self._start(), self._skip
        self._begin, self._skip, self._position, self._under_way = None, None, start, True
        return start, skip

    @property
    def times(self) -> StageTimes:
        """Where the stream's time went until now, in this process."""
        return self._times.sums

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        if epoch < 0:
            raise DataError(f"an epoch is 0 or more, not {epoch}.")
        self._go_to(epoch)
        self._tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: what comes next is the batch after the one that was given out last.

        The state holds under any number of workers and ranks, and is the same on every rank.

        Raises:
            DataError: Worker processes read the stream, so that this process does not know where it stands.
        """
        if self._first is None and (self._begun >= 0).any():
            raise DataError(
                "worker processes of a DataLoader read this stream, and this process does not know how far they are: take "
                "the state of torchdata's StatefulDataLoader, or use the stream as a loader (its `workers` are threads)."
            )
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
        self._begin, self._skip, self._under_way = dict(self._position), state.get("skip"), False
        if get_worker_info() is None:
            self._tell(self.epoch, loaded=True)
        else:
            self._first = self.epoch - int(self._told[1])

    @abstractmethod
    def _start(self) -> Position:
        """Where an epoch begins."""

    def _go_to(self, epoch: int) -> None:
        self.epoch, self._position, self._begin, self._skip, self._under_way = epoch, self._start(), None, None, False

    def _tell(self, epoch: int, *, loaded: bool = False) -> None:
        """Let worker processes go on with an epoch, whatever they have begun."""
        self._heard += 1
        self._begun.fill_(-1)
        self._told.copy_(torch.tensor([self._heard, epoch, loaded]))

    def _begin_next(self) -> None:
        """Go to the epoch after the last one that was begun, here or in a worker process."""
        latest = max((_unpacked(word)[2] for word in self._begun.tolist() if word >= 0), default=None)
        if latest is not None:
            self._go_to(int(self._told[1]) + latest + 1)
        elif self._under_way:
            self._go_to(self.epoch + 1)
        self._tell(self.epoch + 1)

    def _begin_in_worker(self, info: WorkerInfo) -> None:
        """Go to the epoch that this worker process gives out next: the same one as the others of its loader.

        A process that has begun an epoch counts by itself. Before, it follows the workers of its loader, which have the same
        seed; the first of them takes the epoch after the latest.
        """
        heard, told, loaded = self._told.tolist()
        if heard != self._heard:
            if loaded:
                raise DataError(
                    "load_state_dict() was called while worker processes of a loader lived, and they cannot learn the "
                    "position: make a new DataLoader after it."
                )
            self._heard, self._first = heard, None
            self._go_to(told)
        mark = (info.seed - info.id) % _MARKS
        if self._first is None:
            self._first = _first(self._begun.tolist(), info.id, mark)
            if told + self._first != self.epoch:
                self._go_to(told + self._first)
        elif self._under_way:
            self._go_to(self.epoch + 1)
        self._begun[info.id] = _packed(mark, self._first, self.epoch - told)

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
        """What is left of an epoch, which begins with the first batch asked for: some loops make iterators to no use."""
        self._begin_next()
        epoch, (start, _) = self.epoch, self._take()
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
        self._end(epoch, self._position)

    def _in_worker(self, epoch: int, start: Position, skip: int, num_workers: int) -> Iterator[Any]:
        """This worker process's batches: every `num_workers`-th, so that the loader gives out all of them in order."""
        after = start
        with self._making(epoch) as make:
            for step in self._steps(epoch, start):
                after = step.after
                if skip:
                    skip -= 1
                    continue
                batch = make(step.task)
                skip = num_workers - 1
                self._position, self._skip = after, skip
                yield batch
        self._end(epoch, after)

    def _end(self, epoch: int, position: Position) -> None:
        self.epoch, self._position = epoch + 1, self._following(position)
        self._skip, self._under_way = None, False


def _packed(mark: int, first: int, latest: int) -> int:
    """What a worker process began, in the one word of memory that others read whole."""
    return (mark << 2 * _EPOCH_BITS) | (first << _EPOCH_BITS) | latest


def _unpacked(word: int) -> tuple[int, int, int]:
    return word >> 2 * _EPOCH_BITS, (word >> _EPOCH_BITS) % (1 << _EPOCH_BITS), word % (1 << _EPOCH_BITS)


def _first(begun: list[int], worker: int, mark: int) -> int:
    """The first epoch of a new worker process, counted from the one that was told."""
    found = {number: _unpacked(word) for number, word in enumerate(begun) if word >= 0}
    if worker in found and found[worker][0] == mark:  # another loader, or another epoch, with the same seed
        return found[worker][2] + 1
    beside = [first for theirs, first, _ in found.values() if theirs == mark]
    return beside[0] if beside else max((latest for _, _, latest in found.values()), default=-1) + 1


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
