"""Write an HTML page about a store: its columns, its shards, its source and the lengths of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hasten.report.figure import Figure, axis, layout
from hasten.report.page import Plot, environment, render_page, write_page
from hasten.report.words import bytes_words

HEIGHT = 280


def write_store_page(facts: Mapping[str, Any], path: Path) -> None:
    """Write the page to `path`, atomically.

    Args:
        facts: The facts that `hasten.data.store.info.describe` returns.
        path: The file.

    Raises:
        HastenError: The file cannot be written.
    """
    write_page(render_store(facts), path, "--html")


def render_store(facts: Mapping[str, Any]) -> str:
    """Return the page as text."""
    made = environment()
    made.filters["bytes_words"] = bytes_words
    columns = [{**column, "length": facts["lengths"].get(column["name"])} for column in facts["columns"]]
    named = list(facts["lengths"])
    plots = {f"length-{number}": lengths_plot(facts["lengths"][name]) for number, name in enumerate(named)}
    return render_page(made, "store.html.j2", plots, facts=facts, columns=columns, named=named)


def lengths_plot(lengths: Mapping[str, Any]) -> Plot:
    """Return a histogram of row lengths, with the median marked."""
    bins, counts = list(pairwise(lengths["edges"])), lengths["counts"]
    if not lengths["rows"]:
        return "The store has no rows to measure."
    unit = lengths["unit"]
    bars: Figure = {
        "type": "bar",
        "x": [(low + high) / 2 for low, high in bins],
        "y": counts,
        "width": [high - low for low, high in bins],
        "marker": {"color": "$accent", "line": {"color": "$card", "width": 1}},
        "hovertext": [
            f"{low:,.0f} to {high:,.0f} {unit}: {count:,} rows" for (low, high), count in zip(bins, counts, strict=True)
        ],
        "hoverinfo": "text",
    }
    median = {
        "type": "line", "x0": lengths["median"], "x1": lengths["median"], "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": "$open", "width": 2, "dash": "dot"},
    }  # fmt: skip
    return {
        "data": [bars],
        "layout": layout(
            height=HEIGHT,
            bargap=0,
            xaxis=axis(f"length of a row, {unit}", rangemode="tozero"),
            yaxis=axis("sampled rows", automargin=True),
            shapes=[median],
        ),
    }
