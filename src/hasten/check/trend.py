"""The history of checks as one offline page: time of an update over commits, with its changes."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.check.history import Trend
from hasten.report.figure import Figure, axis, layout, safe, whiskers
from hasten.report.page import environment, render_page

HEIGHT = 340


def render_trends(trends: Sequence[Trend], problems: Sequence[str]) -> str:
    """Return the page as text."""
    plots = {f"trend-{number}": trend_plot(trend) for number, trend in enumerate(trends)}
    return render_page(environment(), "trend.html.j2", plots, trends=trends, problems=problems)


def trend_plot(trend: Trend) -> Figure:
    """Return the relative time of an update by commit, with the interval of each, and a line at each change."""
    numbers = list(range(len(trend.records)))
    reach = []
    for record, slowdown in zip(trend.records, trend.slowdown, strict=True):
        anchor = record.anchor if trend.paired else None
        low, high = (anchor["low"], anchor["high"]) if anchor else (None, None)
        reach.append((max(slowdown - 1.0 / high, 0.0) if high else None, max(1.0 / low - slowdown, 0.0) if low else None))
    labels = [safe((record.commit or "no commit")[:12]) for record in trend.records]
    line: Figure = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": numbers,
        "y": list(trend.slowdown),
        "line": {"color": "$accent", "width": 1.5},
        "marker": {"color": "$accent", "size": 7},
        "error_y": whiskers(reach, "$accent"),
        "hovertext": [
            f"{label}<br>{safe(record.when)}<br>{slowdown:.3f}×"
            for label, record, slowdown in zip(labels, trend.records, trend.slowdown, strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip
    shapes = [
        {
            "type": "line", "x0": index - 0.5, "x1": index - 0.5, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": "$bad" if frac > 0 else "$good", "width": 2, "dash": "dot"},
        }
        for index, frac in trend.changes.items()
    ]  # fmt: skip
    every = max(len(numbers) // 8, 1)
    return {
        "data": [line],
        "layout": layout(
            height=HEIGHT,
            xaxis=axis(
                "commit", tickmode="array", tickvals=numbers[::every], ticktext=[label[:7] for label in labels[::every]]
            ),
            yaxis=axis("time of an update, relative to the first", automargin=True, tickformat=".2f"),
            shapes=shapes,
        ),
    }
