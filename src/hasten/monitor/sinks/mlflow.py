"""Windows as metrics of an MLflow run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window

_BATCH = 500
"""Metrics of a request; MLflow takes no more than 1,000."""


class MLflow:
    """Uses a client of its own, so that a run that the script has begun is not touched.

    Options: `uri`, a server or a store (by default MLFLOW_TRACKING_URI, or `mlruns` in the run's folder), and `experiment`.
    """

    card: ClassVar[SinkCard] = SinkCard(
        name="mlflow", summary="an MLflow server, or files in the run's folder", module="mlflow", extra="tracking"
    )

    def __init__(self, start: Start, folder: Path, uri: str = "", experiment: str = "hasten") -> None:
        import mlflow

        uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "") or (folder / "mlruns").absolute().as_uri()
        if uri.startswith("file:"):
            # MLflow maintains its file store no longer and asks for this, but it is the one that needs no other package.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._metric: Any = mlflow.entities.Metric
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        tags = {"host": start.host, "ranks": str(start.world), "from_step": str(start.step)}
        self._run = self._client.create_run(number, int(start.at * 1000), tags, start.run).info.run_id

    def write(self, window: Window) -> None:
        """Log all metrics of the window."""
        ended = int((window.at + window.seconds) * 1000)
        metrics = [self._metric(name, value, ended, window.to_step) for name, value in window.metrics().items()]
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + _BATCH])

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)
