"""The parts of a figure that all plots of the report share: axes, rows, dots, lines, the calm layout."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from hasten.report.evidence import Comparison
from hasten.report.words import ratio_words

Figure: TypeAlias = dict[str, Any]

TICKS = (0.25, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


def safe(label: str) -> str:
    """A label in which plotly reads no HTML."""
    return html.escape(label, quote=False)


def distinct(labels: Sequence[str]) -> list[str]:
    """The labels, with a number on one that comes again a number, because plotly would merge their rows."""
    counts: dict[str, int] = {}
    out = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        out.append(label if counts[label] == 1 else f"{label} #{counts[label]}")
    return out


def reach_of(comparison: Comparison) -> tuple[float | None, float | None]:
    """How far the interval reaches below and above the ratio."""
    low, ratio, high = comparison.low, comparison.ratio, comparison.high
    if low is None or ratio is None or high is None:
        return None, None
    return max(ratio - low, 0.0), max(high - ratio, 0.0)


def dots(labels: Sequence[str], values: Sequence[float | None], **marker: Any) -> Figure:
    """One mark per row, of the `color`, `symbol` and `size` given."""
    line = {"color": marker["color"], "width": 2.5 if "line" in marker["symbol"] else 1.5}
    return {
        "type": "scatter",
        "mode": "markers",
        "y": list(labels),
        "x": list(values),
        "marker": {**marker, "line": line},
        "hovertext": [f"{label}: {ratio_words(value, '×')}" for label, value in zip(labels, values, strict=True)],
        "hoverinfo": "text",
        "cliponaxis": False,
    }


def whiskers(errors: Sequence[tuple[float | None, float | None]], colour: str) -> Figure:
    """Error bars of a row's mark, from how far each interval reaches below and above."""
    below, above = ([arm[side] or 0.0 for arm in errors] for side in (0, 1))
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": 1.6,
        "width": 5,
        "color": colour,
    }


def axis(title: str, **more: Any) -> Figure:
    """A linear axis with a title that names its unit; it cannot be dragged."""
    name = {"text": title, "standoff": 12, "font": {"size": 13, "color": "$muted"}}
    return {"title": name, "fixedrange": True, "zeroline": False, "gridcolor": "$grid", **more}


def ratio_axis(title: str, values: Sequence[float | None]) -> Figure:
    """A log axis of speed-ups that just holds `values`: equal factors get equal lengths."""
    positive = [value for value in values if value is not None and value > 0]
    low, high = min(positive), max(positive)
    pad = max(math.log10(high / low) * 0.05, 0.012)
    span = [math.log10(low) - pad, math.log10(high) + pad]
    ticks = [tick for tick in TICKS if span[0] <= math.log10(tick) <= span[1]]
    apart: list[float] = []
    for tick in sorted(ticks, key=lambda tick: (tick != 1, tick != int(tick), tick)):
        if all(abs(math.log10(tick / other)) > 0.06 * (span[1] - span[0]) for other in apart):
            apart.append(tick)
    apart.sort()
    return axis(title, type="log", range=span, tickmode="array", tickvals=apart, ticktext=[f"{tick:g}×" for tick in apart])


def rows_axis(labels: Sequence[str]) -> Figure:
    """A vertical axis of named rows, the first on top."""
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(labels),
        "range": [len(labels) - 0.5, -0.5],
        "automargin": True,
        "ticksuffix": "  ",
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def vertical(x: float, colour: str, dash: str) -> Figure:
    """A vertical line through the whole plot at `x`."""
    line = {"color": colour, "width": 1.4, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}


def note(x: float, words: str) -> Figure:
    """Words above the plot at `x` of a log axis."""
    where = {"x": math.log10(x), "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    return {**where, "text": words, "font": {"color": "$muted", "size": 12}}


def layout(**more: Any) -> Figure:
    """The layout of every plot: no frame, no legend (the page draws keys), no dragging."""
    plain: Figure = {
        "margin": {"l": 8, "r": 16, "t": 8, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": "$soft"},
        "hoverlabel": {"bgcolor": "$ink", "bordercolor": "$ink", "font": {"color": "$page"}, "align": "left"},
        "showlegend": False,
        "dragmode": False,
    }
    return {**plain, **more}
