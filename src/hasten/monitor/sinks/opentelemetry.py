"""Windows over OTLP, to any collector of OpenTelemetry.

No semantic convention exists for training. Besides the metrics of Hasten, those that it shares with Megatron are sent under
Megatron's names and units (https://docs.nvidia.com/megatron-core/developer-guide/nightly/user-guide/observability/metrics.html),
with the resource attributes of NeMo Lens (`nv.dl.rank`, `nv.dl.world_size`), so that dashboards made for these show them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from hasten.core.version import __version__
from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window

TIMEOUT_S = 5.0
_MEGATRON: dict[str, tuple[str, str, Callable[[float], float]]] = {
    "training.loss": ("loss", "", float),
    "training.gradient_norm": ("grad_norm", "", float),
    "training.learning_rate": ("learning_rate", "", float),
    "training.tokens": ("tokens_per_sec", "tokens/s", float),
    "training.flops": ("throughput_tflops", "TFLOP/s", lambda value: value / 1e12),
    "torch.memory.peak": ("memory_allocated_gb", "GB", lambda value: value / 1e9),
}
"""Metric -> its name and unit in Megatron (all gauges), and its value in that unit."""


class OpenTelemetry:
    """Sends a gauge for each metric, window by window.

    Options: `endpoint`, the URL of the collector (by default OTEL_EXPORTER_OTLP_ENDPOINT), and `service`, its name.
    """

    card: ClassVar[SinkCard] = SinkCard(
        name="opentelemetry", summary="a collector of OpenTelemetry, over OTLP/HTTP", extra="tracking",
        module="opentelemetry.exporter.otlp.proto.http", every_rank=True,
    )  # fmt: skip

    def __init__(self, start: Start, folder: Path, endpoint: str = "", service: str = "hasten") -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
        from opentelemetry.sdk.resources import Resource

        _keep_quiet()
        self._success = MetricExportResult.SUCCESS
        url = f"{endpoint.rstrip('/')}/v1/metrics" if endpoint else None
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=TIMEOUT_S)
        self._reader = InMemoryMetricReader()
        attributes = {
            "service.name": service, "service.instance.id": f"{start.run}-{start.rank}", "host.name": start.host,
            "hasten.run": start.run, "nv.dl.rank": start.rank, "nv.dl.world_size": start.world,
        }  # fmt: skip
        provider = MeterProvider([self._reader], Resource.create(attributes), shutdown_on_exit=False)
        self._meter = provider.get_meter("hasten", __version__)
        self._gauges: dict[str, Any] = {}
        self._step_time = self._meter.create_histogram("megatron.training.step_duration_ms", "ms")
        self._skipped = self._meter.create_counter("megatron.training.skipped_iters")
        self._skipped_before = 0.0

    def write(self, window: Window) -> None:
        """Send the window. Raises ConnectionError if the collector does not take it."""
        metrics = {"training.step": float(window.to_step), **window.metrics()}
        for name, value in metrics.items():
            self._set(name, window.unit(name), value)
            if name in _MEGATRON:
                theirs, unit, convert = _MEGATRON[name]
                self._set(f"megatron.training.{theirs}", unit, convert(value))
        if "training.step_time" in metrics:
            self._step_time.record(metrics["training.step_time"] * 1000.0)
        skipped = metrics.get("training.skipped_steps", self._skipped_before)
        self._skipped.add(max(skipped - self._skipped_before, 0.0))
        self._skipped_before = skipped
        data = self._reader.get_metrics_data()
        if data is not None and self._exporter.export(data, TIMEOUT_S * 1000) is not self._success:
            raise ConnectionError("the collector did not take the metrics; is it running at the endpoint?")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def _set(self, name: str, unit: str, value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._meter.create_gauge(name, unit)
        self._gauges[name].set(value)


def _keep_quiet() -> None:
    """Keep the exporter's messages about this thread off the terminal. The sink reports and counts its failures."""
    thread = threading.get_ident()
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter").addFilter(
        lambda record: record.thread != thread
    )
