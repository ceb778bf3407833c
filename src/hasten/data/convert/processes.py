"""Distribute work over processes of this machine, and return results as they complete."""

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
"""Number of submitted tasks, as a multiple of the number of processes."""


def in_processes(work: Callable[[Task], Made], tasks: Sequence[Task], count: int, *, killed: str) -> Iterator[Made]:
    """Run tasks in processes, and yield their results in order of completion.

    Args:
        work: Function of a module that runs one task.
        tasks: Arguments for the function.
        count: Number of processes; 1 runs the tasks in this process.
        killed: Message for the error if a process is killed.

    Raises:
        DataError: A process was killed.
    """
    if count <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    # Forking a process with threads (torch's, Arrow's) can deadlock on a lock that one of them holds.
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
