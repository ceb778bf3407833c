"""Convert units on a Ray cluster: the same units by the same code, so that the store is the same.

The units are a Ray Data job of one row a unit. Numbers go out and a line of JSON comes back; what is read and written goes
from disk to disk. A worker that dies is replaced and its unit begun anew, a few times; what is done stays done.
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
"""How often a unit is begun anew whose worker died: a unit that needs too much memory must come to an end."""
_OBJECT_BYTES = 128 * 2**20
"""Shared memory of a local cluster: a few lines of text pass through it."""


class RayRunner:
    """Converts units as a Ray Data job: on the cluster of `RAY_ADDRESS`, or on a local one made for it.

    All machines must see the source and the store under the same paths.

    Raises:
        MachineError: Ray is not installed.
    """

    def __init__(self) -> None:
        self._ray = _ray()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Converted]:
        """Convert the tasks.

        Raises:
            DataError: A unit cannot be converted, or its workers die again and again.
        """
        if not tasks:
            return
        ray = self._ray
        mine = not ray.is_initialized()
        if mine:
            local = (
                {} if os.environ.get("RAY_ADDRESS") else {"object_store_memory": _OBJECT_BYTES, "include_dashboard": False}
            )
            ray.init(logging_level="ERROR", log_to_driver=False, **local)
        ray.data.DataContext.get_current().enable_progress_bars = False  # the conversion has one of its own
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        try:
            # A block a unit: otherwise Ray would hand several to one worker and let the others wait.
            rows = ray.data.range(len(tasks), override_num_blocks=len(tasks)).map(_maker(list(tasks)), max_retries=RETRIES)
            for row in rows.iter_rows():
                if row["refused"]:
                    raise DataError(str(row["refused"]))
                yield Converted.from_json(row["converted"], Path(tasks[row["place"]].folder))
        except ray.exceptions.RayError as error:
            raise DataError(
                f"the Ray job broke off ({type(error).__name__}), perhaps since a worker had too little memory: what is "
                f"done is kept. Start the same command again, with or without --ray."
            ) from error
        finally:
            if mine:
                ray.shutdown()


def _maker(tasks: list[Task]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What converts the unit of a row, in a worker; what it refuses comes back in words, without Ray's traces."""

    def made(row: dict[str, Any]) -> dict[str, Any]:
        place = int(row["id"])
        try:
            return {"place": place, "converted": convert_unit(tasks[place]).to_json(), "refused": ""}
        except (HastenError, OSError) as error:
            return {"place": place, "converted": "", "refused": str(error)}

    return made


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a conversion is told to anybody
    try:
        import ray  # noqa: PLC0415  of the extra `ray`
        import ray.data  # noqa: PLC0415
    except ImportError as error:
        raise MachineError("--ray needs Ray: pip install 'hasten[ray]'.") from error
    return ray
