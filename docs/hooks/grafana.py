"""Make a Grafana dashboard of what the Prometheus sink serves: metrics of one kind and unit share a panel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hasten.monitor.catalogue import samplers
from hasten.monitor.metric import OWN, TRAINING
from hasten.monitor.sinks.prometheus import prometheus_name
from hasten.script.watch.record import PHASES as SCRIPT_PHASES
from hasten.train.clock import PHASES

_UNITS = {
    "s": "s", "By": "bytes", "By/s": "Bps", "1": "none", "Hz": "hertz", "W": "watt", "Cel": "celsius", "{cpu}": "none",
}  # fmt: skip
"""Unit -> Grafana's name for it."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WHERE = '{run=~"$run",rank=~"$rank"}'
_WIDTH, _HEIGHT, _ACROSS = 8, 7, 3


def dashboard() -> str:
    """Return the dashboard as JSON, to import in Grafana."""
    panels: list[dict[str, Any]] = []
    phases = [f"phase.{name}" for name in dict.fromkeys((*PHASES, *SCRIPT_PHASES, "validation", "checkpoint"))]
    _add_panel(panels, "Time of a step, by phase", "s", phases, stacked=True)
    for card in (TRAINING, *(kind.card for kind in samplers().values()), OWN):
        by_panel: dict[tuple[str, str], list[str]] = {}
        for metric in card.metrics:
            group = metric.name if metric.unit == "1" and card is TRAINING else metric.name.rpartition(".")[0]
            by_panel.setdefault((group, metric.unit), []).append(metric.name)
        for (group, unit), names in by_panel.items():
            _add_panel(panels, group if len(names) > 1 else names[0], unit, names)
    return json.dumps(
        {
            "title": "Hasten runs",
            "uid": "hasten-runs",
            "tags": ["hasten", "training"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [_datasource(), _variable("run"), _variable("rank")]},
            "annotations": {"list": []},
            "panels": panels,
        },
        indent=1,
    )


def _datasource() -> Mapping[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(label: str) -> Mapping[str, Any]:
    query = f"label_values(hasten_step, {label})"
    return {
        "name": label, "label": label.capitalize(), "type": "query", "datasource": _SOURCE, "definition": query,
        "query": {"query": query, "refId": "values"}, "multi": True, "includeAll": True, "refresh": 2, "sort": 1,
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _add_panel(panels: list[dict[str, Any]], title: str, unit: str, names: Iterable[str], *, stacked: bool = False) -> None:
    place = len(panels)
    targets: list[dict[str, Any]] = [
        {
            "refId": f"Q{number}", "datasource": _SOURCE, "expr": prometheus_name(name, unit) + _WHERE,
            "legendFormat": f"{name} {{{{run}}}} {{{{rank}}}}",
        }
        for number, name in enumerate(names)
    ]  # fmt: skip
    custom: dict[str, Any] = {
        "drawStyle": "line",
        "fillOpacity": 40 if stacked else 5,
        "showPoints": "never",
        "spanNulls": True,
    }
    custom |= {"stacking": {"mode": "normal", "group": "A"}} if stacked else {}
    panels.append({
        "id": place + 1, "type": "timeseries", "title": title, "datasource": _SOURCE, "targets": targets,
        "gridPos": {"x": place % _ACROSS * _WIDTH, "y": place // _ACROSS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": _UNITS.get(unit, "short"), "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    })  # fmt: skip
