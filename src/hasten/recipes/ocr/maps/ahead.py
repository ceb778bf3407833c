"""Make the maps of a dataset before it is first visited: in parallel, with progress, going on where an earlier run ended.

Others compute; this process alone writes. What is in the cache is not made again, so that a run that was stopped, even by
SIGKILL, loses only what was under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hasten.core.errors import DataError, MachineError
from hasten.core.machine import read_cores
from hasten.core.processes import AHEAD, in_processes
from hasten.recipes.ocr.maps.ready import warm
from hasten.recipes.ocr.maps.settings import MapSettings
from hasten.recipes.ocr.maps.store import MapCache
from hasten.recipes.ocr.maps.task import Item, Packed, Task, make_task

_RETRIES = 3
"""How often a task is begun anew on a cluster whose worker died."""
_OBJECT_BYTES = 512 * 2**20
"""Shared memory of a local cluster: packed maps pass through it."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far it is.

    Attributes:
        num_maps: Pictures, each counted once.
        num_found: Of them, whose maps were in the cache at the start.
        num_made: Of them, whose maps were made and kept since.
        is_full: Whether the cache has no more room: the rest is not made.
    """

    num_maps: int
    num_found: int
    num_made: int
    is_full: bool = False


class Runner(Protocol):
    """Something that makes maps: processes of this machine, or a cluster."""

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Packed]:
        """Make the maps of the tasks, in any order, giving each outcome when it is there."""
        ...


def make_ahead(
    cache: MapCache,
    items: Iterable[Item],
    settings: MapSettings,
    *,
    runner: Runner | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    pictures_a_task: int = 16,
) -> Progress:
    """Make and keep the maps that the cache has not.

    Args:
        cache: That is filled.
        items: The pictures, under keys that `map_key` made.
        settings: Of the maps.
        runner: Who makes them; None uses a process a core.
        progress: Called at the start and after every task.
        pictures_a_task: At least 1.

    Returns:
        How far it came: all, unless the cache is full.

    Raises:
        DataError: A worker was killed; what is done is kept.
        MachineError: The extra `recipes` is not installed.
    """
    wanted = {key: (key, polygons, size) for key, polygons, size in items}
    rest = cache.missing(wanted)
    todo = [item for key, item in wanted.items() if key in rest]
    tasks = [
        Task(items=tuple(todo[start : start + pictures_a_task]), settings=settings)
        for start in range(0, len(todo), max(1, pictures_a_task))
    ]
    done = Progress(num_maps=len(wanted), num_found=len(wanted) - len(todo), num_made=0)
    progress(done)
    if not tasks:
        return done
    made = (runner or Processes(read_cores(environ=os.environ).value))(tasks)
    for packed in made:
        kept = cache.put_packed(packed)
        done = Progress(
            num_maps=done.num_maps, num_found=done.num_found, num_made=done.num_made + kept, is_full=kept < len(packed)
        )
        progress(done)
        if done.is_full:
            break
    return done


class Processes:
    """Makes maps in processes of this machine.

    Args:
        count: At once; 1 makes them in this process.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Packed]:
        """Make the maps of the tasks.

        Raises:
            DataError: A process was killed.
        """
        warm()  # workers find the kernels on disk, instead of compiling them all at once
        yield from in_processes(
            make_task, tasks, self._count,
            killed="a process that makes target maps was killed, perhaps for lack of memory: what is done is kept. Start "
            "again, with fewer processes.",
        )  # fmt: skip


class RayRunner:
    """Makes maps on a Ray cluster: the one of `RAY_ADDRESS`, or a local one made for it. The cache is written here alone.

    Raises:
        MachineError: Ray is not installed.
    """

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a dataset is told to anybody
        try:
            import ray  # noqa: PLC0415  of the extra `ray`
        except ImportError as error:
            raise MachineError("target maps on a cluster need Ray: pip install 'hasten[ray]'.") from error
        self._ray: Any = ray

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Packed]:
        """Make the maps of the tasks.

        Raises:
            DataError: The workers die again and again.
        """
        ray = self._ray
        mine = not ray.is_initialized()
        if mine:
            local: dict[str, Any] = {"object_store_memory": _OBJECT_BYTES, "include_dashboard": False}
            ray.init(logging_level="ERROR", log_to_driver=False, **({} if os.environ.get("RAY_ADDRESS") else local))
        make = ray.remote(max_retries=_RETRIES)(make_task)
        ahead = max(1, int(AHEAD * ray.cluster_resources().get("CPU", 1)))
        try:
            running: list[Any] = []
            for task in tasks:
                running.append(make.remote(task))
                if len(running) >= ahead:
                    ended, running = ray.wait(running)
                    yield from ray.get(ended)
            while running:
                ended, running = ray.wait(running)
                yield from ray.get(ended)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            raise DataError(
                f"the Ray job broke off ({type(error).__name__}), perhaps since a worker had too little memory: what is "
                f"done is kept. Start again, with or without Ray."
            ) from error
        finally:
            if mine:
                ray.shutdown()
