"""Distribute work over processes of this machine, and return results as they complete."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import torch

Task = TypeVar("Task")
Made = TypeVar("Made")
AHEAD = 2
"""Number of submitted tasks, as a multiple of the number of processes."""


def in_processes(
    work: Callable[[Task], Made], tasks: Sequence[Task], count: int, *, killed: Callable[[Task], Made]
) -> Iterator[Made]:
    """Run tasks in processes, and yield their results in order of completion.

    The processes share the threads of PyTorch, which readers use too. If one is killed, the tasks that were running are run
    again one at a time, each in a process of its own.

    Args:
        work: Function of a module that runs one task.
        tasks: Arguments for the function.
        count: Number of processes; 1 runs the tasks in this process.
        killed: Returns the result for a task whose own process was killed.
    """
    if count <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    waiting = deque(tasks)
    while waiting:
        running: dict[Future[Made], Task] = {}
        try:
            with _pool(min(count, len(waiting))) as pool:
                while waiting or running:
                    while waiting and len(running) < AHEAD * count:
                        running[pool.submit(work, waiting[0])] = waiting[0]
                        waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        made = future.result()
                        del running[future]
                        yield made
        except BrokenProcessPool:
            for task in running.values():
                yield _alone(work, task, killed)


def _alone(work: Callable[[Task], Made], task: Task, killed: Callable[[Task], Made]) -> Made:
    try:
        with _pool(1) as pool:
            return pool.submit(work, task).result()
    except BrokenProcessPool:
        return killed(task)


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    # Forking a process with threads (torch's, Arrow's) can deadlock on a lock that one of them holds.
    spawn = multiprocessing.get_context("spawn")
    threads = max(torch.get_num_threads() // count, 1)
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=torch.set_num_threads, initargs=(threads,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
