"""Share between all streams: epochs, workers, and the state that determines the next batch.

A stream is a sequence of steps that depends only on (seed, epoch). Each step has a position, a few integers, and can be
computed without the steps before it. Threads and worker processes can therefore share the steps, and a position is enough
as state.
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
"""Position in an epoch: integers, or lists of integers, by name."""
_STATE = 1
_MOST_WORKERS = 1024
"""Maximum number of worker processes of a DataLoader."""
_MARKS, _EPOCH_BITS = 1 << 13, 25
"""Number of distinct loader marks, and number of bits for an epoch. Both fit into a word of 63 bits."""


class Step(NamedTuple):
    """Describe one batch of an epoch. A named tuple, because one is created for every batch.

    Attributes:
        task: What the batch is made from.
        after: Position after the batch.
    """

    task: Any
    after: Position


class Batches(IterableDataset[Any]):
    """Provide batches in an order that can be resumed anywhere, with any number of workers and ranks.

    A stream is both a loader and a torch `IterableDataset` whose items are batches. In a `DataLoader`, set
    `batch_size=None`: its worker processes share the batches and return them in the same order. Each `for` loop is the next
    epoch, even after an epoch that was stopped early. This also holds with worker processes, persistent or not, because they
    count epochs in shared memory. `set_epoch` goes to any other epoch.

    Args:
        workers: Number of threads that prepare batches ahead; 0 prepares each batch on request.
        read_ahead: Maximum number of batches that each thread prepares ahead.

    Attributes:
        epoch: Current epoch in this process, or the next one if none is in progress.
    """

    def __init__(self, *, workers: int, read_ahead: int) -> None:
        if workers < 0 or read_ahead < 1:
            raise DataError(f"workers must be at least 0 and read_ahead at least 1, not {workers} and {read_ahead}.")
        self._workers, self._read_ahead = workers, read_ahead
        self._times = Times()
        self.epoch = 0
        # In memory shared with worker processes: the number of announcements by this process, the announced epoch, and
        # whether a state was loaded. Then what each worker process has started since.
        self._announced = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._begun = torch.full((_MOST_WORKERS,), -1, dtype=torch.int64).share_memory_()
        self._received = 0
        self._under_way = False  # True if `epoch` was started and has not ended
        # In a worker process that counts epochs itself: its first epoch, relative to the announced one.
        self._first: int | None = None
        self._position: Position = self._start()
        self._begin: Position | None = None
        self._skip: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of one epoch, from its start or from the position of a loaded state."""
        info = get_worker_info()
        if info is None:
            return self._here()
        self._begin_in_worker(info)
        start, skip = self._take()
        self._skip = info.id if skip is None else skip
        return self._in_worker(self.epoch, start, self._skip, info.num_workers)

    def _take(self) -> tuple[Position, int | None]:
        """Start the epoch at its beginning, or at the position of a loaded state."""
        start, skip = self._begin or self._start(), self._skip
        self._begin, self._skip, self._position, self._under_way = None, None, start, True
        return start, skip

    @property
    def times(self) -> StageTimes:
        """Return where the stream's time went so far in this process."""
        return self._times.sums

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        if epoch < 0:
            raise DataError(f"epoch must be 0 or more, not {epoch}.")
        self._go_to(epoch)
        self._announce(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the stream. The next batch after loading it is the one after the last batch returned.

        The state is valid with any number of workers and ranks, and is the same on every rank.

        Raises:
            DataError: Worker processes read the stream, so this process does not know its position.
        """
        if self._first is None and (self._begun >= 0).any():
            raise DataError(
                "worker processes of a DataLoader read this stream, so this process does not know its position: use the "
                "state of torchdata's StatefulDataLoader, or use the stream as a loader (its `workers` are threads)."
            )
        state = {"format": _STATE, "epoch": self.epoch, "position": dict(self._position), "stream": self._identity()}
        return state if self._skip is None else {**state, "skip": self._skip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state with the next `for` loop.

        Raises:
            DataError: The state belongs to a stream with another store, version or seed, whose order is different.
        """
        if state.get("format") != _STATE or "stream" not in state:
            raise DataError(
                f"this is not the state of a stream: it contains {', '.join(sorted(map(str, state))) or 'nothing'}."
            )
        identity = self._identity()
        for name in identity:
            if state["stream"].get(name) != identity[name]:
                hint = " (Store(path, version=...))" if name == "store_version" else ""
                raise DataError(
                    f"the state was taken with {name}={state['stream'].get(name)!r}, but this stream has {identity[name]!r} "
                    f"and therefore another order: create the stream with the original value{hint}."
                )
        self.epoch, self._position = int(state["epoch"]), dict(state["position"])
        self._begin, self._skip, self._under_way = dict(self._position), state.get("skip"), False
        if get_worker_info() is None:
            self._announce(self.epoch, loaded=True)
        else:
            self._first = self.epoch - int(self._announced[1])

    @abstractmethod
    def _start(self) -> Position:
        """Return the position at the start of an epoch."""

    def _go_to(self, epoch: int) -> None:
        self.epoch, self._position, self._begin, self._skip, self._under_way = epoch, self._start(), None, None, False

    def _announce(self, epoch: int, *, loaded: bool = False) -> None:
        """Make worker processes continue with an epoch, regardless of the epochs they have started."""
        self._received += 1
        self._begun.fill_(-1)
        self._announced.copy_(torch.tensor([self._received, epoch, loaded]))

    def _begin_next(self) -> None:
        """Go to the epoch after the last one that was started, here or in a worker process."""
        latest = max((_unpacked(word)[2] for word in self._begun.tolist() if word >= 0), default=None)
        if latest is not None:
            self._go_to(int(self._announced[1]) + latest + 1)
        elif self._under_way:
            self._go_to(self.epoch + 1)
        self._announce(self.epoch + 1)

    def _begin_in_worker(self, info: WorkerInfo) -> None:
        """Go to the epoch that this worker process reads next, which is the same for all workers of its loader.

        A worker process that has started an epoch keeps its own count. Before that, it follows the other workers of its
        loader, which have the same seed. The first of them starts the epoch after the latest one.
        """
        received, announced, loaded = self._announced.tolist()
        if received != self._received:
            if loaded:
                raise DataError(
                    "load_state_dict() was called while worker processes were running, which cannot receive the new "
                    "position: create a new DataLoader after loading the state."
                )
            self._received, self._first = received, None
            self._go_to(announced)
        mark = (info.seed - info.id) % _MARKS
        if self._first is None:
            self._first = _first(self._begun.tolist(), info.id, mark)
            if announced + self._first != self.epoch:
                self._go_to(announced + self._first)
        elif self._under_way:
            self._go_to(self.epoch + 1)
        self._begun[info.id] = _packed(mark, self._first, self.epoch - announced)

    def _following(self, position: Position) -> Position:
        """Return the start position of the next epoch, after one that ended at a position."""
        return self._start()

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return everything that determines the order, except the epoch."""

    @abstractmethod
    def _steps(self, epoch: int, position: Position) -> Iterator[Step]:
        """Yield the steps of an epoch from a position on."""

    @abstractmethod
    def _making(self, epoch: int) -> AbstractContextManager[Callable[[Any], Any]]:
        """Provide a function that makes the batch of a task in any thread, while the epoch is in progress."""

    def _here(self) -> Iterator[Any]:
        """Yield the rest of an epoch. It starts with the first batch requested, as some loops create unused iterators."""
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
                    del batch  # drop this reference, so that the memory can be reused as soon as the caller releases it
                    before = perf_counter()
                self._times.waited(perf_counter() - before)
            finally:
                batches.close()
        self._end(epoch, self._position)

    def _in_worker(self, epoch: int, start: Position, skip: int, num_workers: int) -> Iterator[Any]:
        """Yield every `num_workers`-th batch for this worker process, so that the loader returns all batches in order."""
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
    """Pack what a worker process has started into one word, which other processes can read atomically."""
    return (mark << 2 * _EPOCH_BITS) | (first << _EPOCH_BITS) | latest


def _unpacked(word: int) -> tuple[int, int, int]:
    return word >> 2 * _EPOCH_BITS, (word >> _EPOCH_BITS) % (1 << _EPOCH_BITS), word % (1 << _EPOCH_BITS)


def _first(begun: list[int], worker: int, mark: int) -> int:
    """Return the first epoch of a new worker process, relative to the announced one."""
    started = {number: _unpacked(word) for number, word in enumerate(begun) if word >= 0}
    if worker in started and started[worker][0] == mark:  # another loader or epoch with the same seed
        return started[worker][2] + 1
    same_loader = [first for other_mark, first, _ in started.values() if other_mark == mark]
    return same_loader[0] if same_loader else max((latest for _, _, latest in started.values()), default=-1) + 1


def _prepared(
    make: Callable[[Any], Any], steps: Iterable[Step], *, threads: int, ahead: int
) -> Generator[tuple[Position, Any]]:
    """Yield the batches of steps in order, each with the position after it.

    Threads help if `make` waits or releases the GIL, as file reads, decoding and large copies do. An error is raised in
    place of its batch.

    Args:
        make: Function that makes the batch of a task.
        steps: Steps, read as far ahead as batches are made.
        threads: Number of threads; 0 makes each batch on request.
        ahead: Maximum number of batches in progress or waiting.
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
    """Wait for the first batch and return it."""
    after, future = waiting.popleft()
    return after, future.result()


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and world size of this process, as given or from torch.distributed.

    Raises:
        DataError: Only one of the two is given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise DataError(f"rank and world_size must be given together, not rank={rank} and world_size={world_size}.")
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1
    if not 0 <= rank < world_size:
        raise DataError(f"rank must be between 0 and world_size - 1, not {rank} of {world_size}.")
    return rank, world_size
