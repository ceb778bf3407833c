"""Convert units on a Ray cluster: the same units by the same code, so that the store is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from upshift.core.errors import MachineError
from upshift.data.convert.unit import Converted, Task, convert_unit


class RayRunner:
    """Converts units as a Ray Data job: on the cluster of `RAY_ADDRESS`, or on a local one made for it.

    All machines must see the source and the store under the same paths.

    Raises:
        MachineError: Ray is not installed.
    """

    def __init__(self) -> None:
        self._ray = _ray()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Converted]:
        """Convert the tasks."""
        if not tasks:
            return
        ray = self._ray
        mine = not ray.is_initialized()
        if mine:
            ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        try:
            # A block a task: otherwise Ray would hand several to one worker and let the others wait.
            made = ray.data.from_items([{"task": task} for task in tasks], override_num_blocks=len(tasks)).map(_convert)
            for row in made.iter_rows():
                yield row["converted"]
        finally:
            if mine:
                ray.shutdown()


def _convert(row: dict[str, Any]) -> dict[str, Any]:
    return {"converted": convert_unit(row["task"])}


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  of the extra `ray`
        import ray.data  # noqa: PLC0415
    except ImportError as error:
        raise MachineError("--ray needs Ray: pip install 'upshift[ray]'.") from error
    return ray
