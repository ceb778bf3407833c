"""Parts of a figure that the plots of the report share: axes, rows, dots, lines and the layout."""

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
    """Escape a label, because plotly interprets HTML in labels."""
    return html.escape(label, quote=False)


def distinct(labels: Sequence[str]) -> list[str]:
    """Return the labels with a number appended to repeated ones. Plotly would merge rows with equal labels."""
    counts: dict[str, int] = {}
    out = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        out.append(label if counts[label] == 1 else f"{label} #{counts[label]}")
    return out


def reach_of(comparison: Comparison) -> tuple[float | None, float | None]:
    """Return how far the interval extends below and above the ratio."""
    low, ratio, high = comparison.low, comparison.ratio, comparison.high
    if low is None or ratio is None or high is None:
        return None, None
    return max(ratio - low, 0.0), max(high - ratio, 0.0)


def dots(labels: Sequence[str], values: Sequence[float | None], **marker: Any) -> Figure:
    """Return one mark per row, with the given `color`, `symbol` and `size`."""
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
    """Return error bars for the marks, from the extent of each interval below and above."""
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
    """Return a linear axis that cannot be dragged. The title should name the unit."""
    name = {"text": title, "standoff": 12, "font": {"size": 13, "color": "$muted"}}
    return {"title": name, "fixedrange": True, "zeroline": False, "gridcolor": "$grid", **more}


def ratio_axis(title: str, values: Sequence[float | None]) -> Figure:
    """Return a log axis of speed-ups that fits `values`. Equal factors have equal lengths."""
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
    """Return a vertical axis of named rows, the first at the top."""
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
    """Return a vertical line across the whole plot at `x`."""
    line = {"color": colour, "width": 1.4, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}


def note(x: float, text: str) -> Figure:
    """Return a note above the plot at `x` of a log axis."""
    where = {"x": math.log10(x), "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    return {**where, "text": text, "font": {"color": "$muted", "size": 12}}


def layout(**more: Any) -> Figure:
    """Return the layout of every plot: no frame, no legend (the page has its own), no dragging."""
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
