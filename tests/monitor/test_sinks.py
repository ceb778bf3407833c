"""Each sink against its real library: what was written is read back with the library, or with what it serves."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from hasten.monitor.begin import make_monitor, parse_sinks, run_name
from hasten.monitor.catalogue import sinks
from hasten.monitor.monitor import Pace, Progress
from hasten.monitor.sampler import Host
from hasten.monitor.sink import QueuedSink, SinkCard
from hasten.monitor.sinks.mlflow import MLflow
from hasten.monitor.sinks.opentelemetry import OpenTelemetry
from hasten.monitor.sinks.parquet import Parquet
from hasten.monitor.sinks.prometheus import Prometheus
from hasten.monitor.sinks.tensorboard import TensorBoard
from hasten.monitor.sinks.trackio import Trackio
from hasten.monitor.sinks.wandb import WeightsAndBiases
from hasten.monitor.window import Mark, Start, Window
from hasten.monitor.windows_file import read_windows, windows_path

START = Start(
    run="r1", rank=0, world=2, host="h", at=1_800_000_000.0, units={"training.samples": "{sample}/s", "process.cpu": "{cpu}"}
)
LOSSES = {20: 2.5, 40: 1.25}


def windows() -> list[Window]:
    """Two windows of twenty steps."""
    return [
        Window(
            start=START, number=number, from_step=step - 20, to_step=step, at=START.at + 10 * number, seconds=10.0,
            phases={"data": 5.0}, marks=(Mark(name="checkpoint", step=step - 5, at=START.at, seconds=0.5),),
            values={"training.loss": loss, "training.samples": 64.0, "process.cpu": 1.5, "training.step_time": 0.5,
                    "training.gradient_norm": float("nan"), "training.flops": 2e12, "training.skipped_steps": float(number)},
        )
        for number, (step, loss) in enumerate(LOSSES.items())
    ]  # fmt: skip


def write_to(sink: Any) -> None:
    for window in windows():
        sink.write(window)
    sink.close()


def test_every_sink_has_a_card_and_is_chosen_by_its_name() -> None:
    assert set(sinks()) >= {"mlflow", "opentelemetry", "parquet", "prometheus", "tensorboard", "trackio", "wandb"}
    for name, kind in sinks().items():
        card: SinkCard = kind.card
        assert (card.name, bool(card.summary)) == (name, True)
        assert bool(card.module) == bool(card.extra)
    there = [name for name, kind in sinks().items() if not kind.card.module or _is_there(kind.card.module)]
    assert [request.kind.card.name for request in parse_sinks(there)] == there


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def test_a_run_is_named_by_its_folder_and_its_start() -> None:
    assert run_name(Path("/runs/a"), START.at) == "a-20270115-080000"


def test_parquet_has_a_row_for_each_metric(tmp_path: Path) -> None:
    write_to(Parquet(START, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["windows.parquet"]
    table = pq.read_table(tmp_path / "windows.parquet").to_pylist()
    losses = {row["to_step"]: row["value"] for row in table if row["metric"] == "training.loss"}
    assert losses == LOSSES
    data = [row for row in table if row["metric"] == "phase.data"]
    assert [(row["unit"], row["value"], row["run"], row["from_step"]) for row in data] == [
        ("s", 0.25, "r1", 0), ("s", 0.25, "r1", 20),
    ]  # fmt: skip
    assert not [row for row in table if row["metric"] == "training.gradient_norm"]


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_to(TensorBoard(START, tmp_path))
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert {event.step: event.value for event in read.Scalars("training/loss")} == LOSSES
    assert [event.wall_time for event in read.Scalars("phase/data")] == [START.at + 10, START.at + 20]
    assert {event.step for event in read.Tensors("marks/checkpoint/text_summary")} == {15, 35}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # SQLAlchemy's, of what MLflow uses
@pytest.mark.parametrize("store", ["files", pytest.param("sqlite", marks=pytest.mark.long)])
def test_mlflow_reads_the_metrics(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    if store == "sqlite":
        pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = f"sqlite:///{tmp_path}/mlflow.db" if store == "sqlite" else (tmp_path / "mlruns").as_uri()
    sink = MLflow(START, tmp_path, uri if store == "sqlite" else "")
    write_to(sink)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("hasten")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("r1", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "training.loss")
    assert {metric.step: metric.value for metric in history} == LOSSES
    assert history[0].timestamp == (START.at + 10) * 1000


@pytest.mark.slow
def test_wandb_reads_the_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    write_to(WeightsAndBiases(START, tmp_path))
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records, until = list[Any](), monotonic() + 20
    while not any(record.HasField("exit") for record in records) and monotonic() < until:  # its service may write later
        sleep(0.05)
        records = [wandb_internal_pb2.Record.FromString(data) for data in _log_records(path.read_bytes())]
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert {int(row["_step"]): row["training/loss"] for row in rows} == LOSSES


def _log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a W&B file: a header of 7 bytes, then a log in the format of LevelDB."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def test_trackio_reads_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    import trackio
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path)
    write_to(Trackio(START, tmp_path))
    rows = trackio.SQLiteStorage.get_logs("hasten", "r1")
    assert {row["step"]: row["training/loss"] for row in rows} == LOSSES
    assert [str(row["timestamp"]) for row in rows] == ["2027-01-15T08:00:10+00:00", "2027-01-15T08:00:20+00:00"]
    (database,) = tmp_path.glob("*.db")
    assert sqlite3.connect(database).execute("select count(*) from metrics").fetchone() == (2,)


def test_prometheus_serves_the_newest_window_on_the_loopback_only() -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    sink = Prometheus(START, Path(), port="0")
    try:
        for window in windows():
            sink.write(window)
        address = f"http://127.0.0.1:{sink.port}/metrics"
        with urlopen(address) as answer:
            text = answer.read().decode()
    finally:
        sink.close()
    samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["hasten_training_loss"].value == 1.25
    assert samples["hasten_phase_data_seconds"].value == 0.25
    assert samples["hasten_training_samples_per_second"].value == 64.0
    assert samples["hasten_training_loss"].labels == {"run": "r1", "rank": "0", "host": "h"}
    assert "hasten_training_gradient_norm" not in samples
    with pytest.raises(OSError, match="refused"):
        urlopen(address)


class Collector(BaseHTTPRequestHandler):
    """A collector of OpenTelemetry: keeps the requests it gets."""

    received: list[Any]
    status = 200

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportMetricsServiceRequest()
        request.ParseFromString(body)
        self.received.append((self.path, request))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Stay silent."""


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    received: list[Any] = []
    handler = type("Kept", (Collector,), {"received": received, "status": status})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_collector_of_opentelemetry_gets_our_names_and_megatrons() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collector() as (endpoint, received):
        write_to(OpenTelemetry(START, Path(), endpoint))
    assert [path for path, _ in received] == ["/v1/metrics"] * 2
    resource = received[-1][1].resource_metrics[0]
    attributes = {item.key: item.value for item in resource.resource.attributes}
    assert attributes["service.name"].string_value == "hasten"
    assert (attributes["nv.dl.rank"].int_value, attributes["nv.dl.world_size"].int_value) == (0, 2)
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    gauges = {
        "training.loss": (1.25, "1"), "training.samples": (64.0, "{sample}/s"), "phase.data": (0.25, "s"),
        "megatron.training.loss": (1.25, ""), "megatron.training.throughput_tflops": (2.0, "TFLOP/s"),
    }  # fmt: skip
    assert {name: (metrics[name].gauge.data_points[0].as_double, metrics[name].unit) for name in gauges} == gauges
    times = metrics["megatron.training.step_duration_ms"]
    assert (times.unit, times.histogram.data_points[0].sum, times.histogram.data_points[0].count) == ("ms", 1000.0, 2)
    assert metrics["megatron.training.skipped_iters"].sum.data_points[0].as_double == 1.0
    assert "training.gradient_norm" not in metrics


def test_a_collector_that_refuses_is_reported_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    said: list[str] = []
    with collector(status=400) as (endpoint, received):
        queue = QueuedSink("opentelemetry", lambda: OpenTelemetry(START, Path(), endpoint), said.append)
        for window in windows():
            queue.put(window)
        queue.end()
        queue.wait(monotonic() + 20)
    assert (queue.dropped, len(received)) == (2, 2)
    assert len(said) == 1
    assert "did not take the metrics" in said[0]
    assert not caplog.records


def test_a_monitor_writes_to_the_folder_and_to_the_chosen_sinks_of_its_rank(tmp_path: Path) -> None:
    said: list[str] = []
    for rank in (0, 1):
        step = 0

        def progress() -> Progress:
            return Progress(step=step)  # noqa: B023 - used within the round

        host = Host(rank=rank, folder=tmp_path)
        requests = parse_sinks(["parquet", "tensorboard"]) if _is_there("tensorboard") else parse_sinks(["parquet"])
        pace = Pace(steps=1, least_s=0.0, cost_frac=1e9)
        with make_monitor(
            Start(run="", rank=rank, world=2), progress, host, requests, say=said.append, pace=pace
        ) as monitor:
            step = 1
            monitor.after_step()
    assert said == []
    assert {path.name for path in tmp_path.iterdir()} - {"tensorboard"} == {
        "windows.jsonl", "windows-1.jsonl", "windows.parquet", "windows-1.parquet",
    }  # fmt: skip
    (window,) = read_windows(windows_path(tmp_path, 1))
    assert (window.to_step, window.start.rank, window.start.units["gpu.power"]) == (1, 1, "W")
    assert window.start.run.startswith(tmp_path.name)
    assert window.values["monitor.dropped"] == 0
