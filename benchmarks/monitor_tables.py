"""Tables of what monitoring offers, made from the cards of samplers and sinks."""

from __future__ import annotations

import inspect
from typing import Any

from hasten.monitor.catalogue import samplers, sinks
from hasten.monitor.metric import OWN, TRAINING, Card

_OURS = ("start", "folder")


def metrics_table(_found: Any) -> str:
    """Return each metric with its unit and meaning, and each sampler with its source and needs."""
    lines = ["| metric | unit | what it is |", "|---|---|---|"]
    for card in (TRAINING, *(kind.card for kind in samplers().values()), OWN):
        lines.append(f"| **{card.name}**, from {_source(card)} | | |")
        lines += [f"| `{metric.name}` | `{metric.unit}` | {metric.help} |" for metric in card.metrics]
    return "\n".join(lines)


def sinks_table(_found: Any) -> str:
    """Return each sink with its options and what to install."""
    lines = ["| name | where the metrics go | options | needs | ranks |", "|---|---|---|---|---|"]
    for name, kind in sinks().items():
        options = [
            f"`{option.name}`" + (f" (`{option.default}`)" if option.default else "")
            for option in inspect.signature(kind).parameters.values()
            if option.name not in _OURS
        ]
        needs = f"`pip install 'hasten[{kind.card.extra}]'`" if kind.card.extra else "nothing"
        ranks = "all" if kind.card.every_rank else "0"
        lines.append(f"| `{name}` | {kind.card.summary} | {', '.join(options) or 'none'} | {needs} | {ranks} |")
    return "\n".join(lines)


def _source(card: Card) -> str:
    return card.source + (f"; needs {card.needs}" if card.needs else "")
