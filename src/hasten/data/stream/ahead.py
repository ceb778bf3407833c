"""Prepare what comes next while the model computes: in order, by a few threads, never more than a bounded number ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def prepared(make: Callable[[In], Out], tasks: Iterable[In], *, threads: int, ahead: int) -> Iterator[Out]:
    """Results of `make` in the order of the tasks.

    Threads help where `make` waits or lets the interpreter go, as reading files, decoding and large copies do.

    Args:
        make: Prepares one result; an error it raises is raised here, at the place of that result.
        tasks: What to prepare; read as far ahead as results are.
        threads: Those that prepare; 0 prepares each result when it is asked for.
        ahead: Results in preparation or waiting; at least 1 where there are threads.
    """
    if not threads:
        yield from map(make, tasks)
        return
    stop = threading.Event()

    def guarded(task: In) -> Out | None:
        return None if stop.is_set() else make(task)

    waiting: deque[Future[Out | None]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hasten-data")
    try:
        for task in tasks:
            waiting.append(pool.submit(guarded, task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()  # type: ignore[misc]  # None only after the stop
        while waiting:
            yield waiting.popleft().result()  # type: ignore[misc]  # as above
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
