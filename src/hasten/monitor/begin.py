"""Put a monitor together: all samplers, the file in the run's folder, and the sinks that were asked for."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from hasten.core.errors import HastenError
from hasten.monitor.alerts.live import LiveAlerts
from hasten.monitor.catalogue import samplers, sinks
from hasten.monitor.metric import units
from hasten.monitor.monitor import Monitor, Pace, Progress
from hasten.monitor.sampler import Host, Samplers
from hasten.monitor.sink import QueuedSink, SinkRequest, parse_sink
from hasten.monitor.window import Start
from hasten.monitor.windows_file import WindowsFile


def run_name(folder: Path, at: float) -> str:
    """Return the name of a run, made of its folder's name and the time of its start."""
    return f"{folder.absolute().name or 'run'}-{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}"


def parse_sinks(texts: Sequence[str]) -> list[SinkRequest]:
    """Read what `--log-to` was given. Raises HastenError like `parse_sink`."""
    return [parse_sink(text, sinks()) for text in texts]


def make_monitor(
    start: Start,
    progress: Callable[[], Progress],
    host: Host,
    requests: Sequence[SinkRequest] = (),
    *,
    say: Callable[[str], None],
    pace: Pace | None = None,
    alerts: LiveAlerts | None = None,
    samples: int | None = None,
) -> Monitor:
    """Return a monitor for this rank.

    Host, time and units of the start are filled in. The host's folder takes `windows.jsonl`. Ranks other than 0 use only the
    sinks for every rank, and no alerts.
    """
    try:
        kinds = samplers()
    except HastenError as error:  # of another package
        say(f"no samplers are read: {error}")
        kinds = {}
    at = start.at or time()
    start = replace(start, run=start.run or run_name(host.folder, at), host=platform.node(), at=at, units=units(kinds))
    wanted = [SinkRequest(kind=WindowsFile, options={}), *requests]
    queues = [
        QueuedSink(request.kind.card.name, partial(request.kind, start, host.folder, **request.options), say)
        for request in wanted
        if start.rank == 0 or request.kind.card.every_rank
    ]
    judged: dict[str, Any] = {}
    if alerts is not None and not start.rank:
        alerts.begin(start.run, host.folder, start.world, samples=samples)
        judged = {"on_window": alerts.on_window, "at_end": alerts.close}
    return Monitor(start, progress, Samplers(kinds, host, say), queues, pace=pace, say=say, **judged)
