"""The newest window for Prometheus to scrape, on the loopback. docs/assets/grafana.json is a dashboard of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window

LABELS = ("run", "rank", "host")
_SUFFIX = {
    "s": "_seconds", "By": "_bytes", "By/s": "_bytes_per_second", "Hz": "_hertz", "W": "_watts", "Cel": "_celsius",
    "{sample}/s": "_per_second", "{token}/s": "_per_second",
}  # fmt: skip


def prometheus_name(metric: str, unit: str) -> str:
    """Return the name of a metric in Prometheus, with its unit as the naming rules have it."""
    name = "hasten_" + metric.replace(".", "_")
    return name + (_SUFFIX.get(unit) or ("_per_second" if unit.endswith("/s") else ""))


class Prometheus:
    """Serves `http://ADDRESS:PORT/metrics`. The local rank is added to the port.

    Options: `port` of rank 0, and `address` to listen on. Anyone who can reach it can read the metrics.
    """

    card: ClassVar[SinkCard] = SinkCard(
        name="prometheus", summary="an HTTP endpoint that Prometheus scrapes", module="prometheus_client", extra="tracking",
        every_rank=True,
    )  # fmt: skip

    def __init__(self, start: Start, folder: Path, port: str = "9464", address: str = "127.0.0.1") -> None:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import GaugeMetricFamily

        self._window: Window | None = None
        self._family = GaugeMetricFamily
        registry = CollectorRegistry()
        registry.register(self)
        local_rank = int(os.environ.get("LOCAL_RANK", "0")) if int(port) else 0
        self._server, self._thread = start_http_server(int(port) + local_rank, address, registry)

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_port)

    def write(self, window: Window) -> None:
        """Serve this window from now on."""
        self._window = window

    def collect(self) -> Iterable[Any]:
        """Yield the metrics of the newest window."""
        window = self._window
        if window is None:
            return
        start = window.start
        labels = [start.run, str(start.rank), start.host]
        numbers = {"step": float(window.to_step), "window.seconds": window.seconds, **window.metrics()}
        for name, value in numbers.items():
            unit = "s" if name == "window.seconds" else window.unit(name)
            shown = prometheus_name(name, unit) if name != "window.seconds" else "hasten_window_seconds"
            family = self._family(shown, f"{name} in {unit}", labels=LABELS)
            family.add_metric(labels, value)
            yield family

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
