"""Convert units on a Ray cluster, with the same code and units as locally, so the store is identical.

Each unit is a Ray task. Only its description is sent out and a description of its shards comes back; the data itself is read
and written by the workers. If a worker dies, it is replaced and its unit is restarted a limited number of times. Completed
units are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from hasten.core.errors import DataError, HastenError
from hasten.core.ray import load_ray
from hasten.data.convert.unit import Converted, Task, convert_unit

RETRIES = 3
"""Number of restarts of a unit whose worker died. The limit stops units that need too much memory."""
_OBJECT_BYTES = 128 * 2**20
"""Size of a local cluster's object store. Only descriptions pass through it."""
_SUBMITTED = 1_000
"""Largest number of units that are submitted at a time. Waiting takes longer with more."""


class RayRunner:
    """Convert units as Ray tasks, on the cluster of `RAY_ADDRESS` or on a temporary local one.

    All machines must see the source and the store under the same paths.

    Raises:
        MachineError: Ray is not installed.
    """

    def __init__(self) -> None:
        self._ray = load_ray()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Converted]:
        """Convert the tasks.

        Raises:
            DataError: A unit cannot be converted, or its workers died repeatedly.
        """
        if not tasks:
            return
        ray = self._ray
        owned = not ray.is_initialized()
        if owned:
            local = (
                {} if os.environ.get("RAY_ADDRESS") else {"object_store_memory": _OBJECT_BYTES, "include_dashboard": False}
            )
            ray.init(logging_level="ERROR", log_to_driver=False, **local)
        running: set[Any] = set()
        try:
            coming = map(_convert(ray).remote, tasks)
            while running := running | set(islice(coming, _SUBMITTED - len(running))):
                for ended in ray.wait(list(running))[0]:
                    running.remove(ended)
                    result: Converted | str = ray.get(ended)
                    if isinstance(result, str):
                        raise DataError(result)
                    yield result
        except ray.exceptions.RayError as error:
            raise DataError(
                f"the Ray job failed ({type(error).__name__}), possibly because a worker ran out of memory: completed units "
                f"are kept. Run the same command again, with or without --ray."
            ) from error
        finally:
            if owned:
                ray.shutdown()
            else:
                for reference in running:
                    ray.cancel(reference)


def _convert(ray: Any) -> Any:
    """Return the Ray task that converts a unit, or returns why the unit is refused, without Ray's traces."""

    def convert(task: Task) -> Converted | str:
        try:
            return convert_unit(task)
        except (HastenError, OSError) as error:
            return str(error)

    return ray.remote(max_retries=RETRIES, scheduling_strategy="SPREAD")(convert)
