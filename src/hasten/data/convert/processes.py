"""Work spread over processes of this machine: a few tasks ahead of those at work, results as they come."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from hasten.core.errors import DataError

Task = TypeVar("Task")
Made = TypeVar("Made")
AHEAD = 2
"""Tasks handed out, as a multiple of the processes."""


def in_processes(work: Callable[[Task], Made], tasks: Sequence[Task], count: int, *, killed: str) -> Iterator[Made]:
    """Do tasks in processes, and give their results in the order they end.

    Args:
        work: What to do with each; a function of a module.
        tasks: What it is given.
        count: Processes at once; 1 works in this process.
        killed: What a person reads where a process was killed.

    Raises:
        DataError: A process was killed.
    """
    if count <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    # A fork of a process that has threads (torch's, Arrow's) may wait for ever for a lock that one of them held.
    pool = ProcessPoolExecutor(min(count, len(tasks)), mp_context=multiprocessing.get_context("spawn"))
    try:
        running: set[Future[Made]] = set()
        for task in tasks:
            running.add(pool.submit(work, task))
            if len(running) >= AHEAD * count:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in ended)
    except BrokenProcessPool as error:
        raise DataError(killed) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
