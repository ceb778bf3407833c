"""Convert units on a Ray cluster, with the same code and units as locally, so the store is identical.

The units form a Ray Data job with one row per unit. Only unit numbers are sent out and one line of JSON comes back; the data
itself is read and written by the workers. If a worker dies, it is replaced and its unit is restarted a limited number of
times. Completed units are kept.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError, HastenError, MachineError
from hasten.data.convert.unit import Converted, Task, convert_unit

RETRIES = 3
"""Number of restarts of a unit whose worker died. The limit stops units that need too much memory."""
_OBJECT_BYTES = 128 * 2**20
"""Size of a local cluster's object store. Only a few lines of text pass through it."""


class RayRunner:
    """Convert units as a Ray Data job, on the cluster of `RAY_ADDRESS` or on a temporary local one.

    All machines must see the source and the store under the same paths.

    Raises:
        MachineError: Ray is not installed.
    """

    def __init__(self) -> None:
        self._ray = _ray()

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
        ray.data.DataContext.get_current().enable_progress_bars = False  # the conversion has its own progress bar
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        try:
            # One block per unit: otherwise Ray would give several units to one worker while others are idle.
            rows = ray.data.range(len(tasks), override_num_blocks=len(tasks)).map(
                _converter(list(tasks)), max_retries=RETRIES
            )
            for row in rows.iter_rows():
                if row["refused"]:
                    raise DataError(str(row["refused"]))
                yield Converted.from_json(row["converted"], Path(tasks[row["place"]].folder))
        except ray.exceptions.RayError as error:
            raise DataError(
                f"the Ray job failed ({type(error).__name__}), possibly because a worker ran out of memory: completed units "
                f"are kept. Run the same command again, with or without --ray."
            ) from error
        finally:
            if owned:
                ray.shutdown()


def _converter(tasks: list[Task]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that converts the unit of a row in a worker, and returns failures as text without Ray's traces."""

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        place = int(row["id"])
        try:
            return {"place": place, "converted": convert_unit(tasks[place]).to_json(), "refused": ""}
        except (HastenError, OSError) as error:
            return {"place": place, "converted": "", "refused": str(error)}

    return convert


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no usage statistics
    try:
        import ray  # noqa: PLC0415  of the extra `ray`
        import ray.data  # noqa: PLC0415
    except ImportError as error:
        raise MachineError("--ray needs Ray: pip install 'hasten[ray]'.") from error
    return ray
