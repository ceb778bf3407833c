"""Write an HTML page about the size of a model: its memory as stacked bars, and what trains where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.report.figure import Figure, axis, layout, rows_axis, safe
from hasten.report.page import Plot, environment, render_page, write_page
from hasten.report.words import bytes_words

GIB = 2**30
COLOURS = {
    "parameters": "$phase-forward", "gradients": "$phase-backward", "states": "$phase-optimizer",
    "activations": "$phase-data", "gathered": "$phase-sync", "temporary": "$phase-logging", "fragmentation": "$phase-other",
}  # fmt: skip


def write_size_page(found: Mapping[str, Any], path: Path) -> None:
    """Write the page to `path`, atomically.

    Args:
        found: What `hasten size --json` prints.
        path: The file.

    Raises:
        HastenError: The file cannot be written.
    """
    made = environment()
    made.filters["bytes_words"] = bytes_words
    plots: dict[str, Plot] = {}
    if "memory" in found:
        moments = found["memory"]["moments"]
        plots["moments"] = bars([f"peak of {phase}" for phase in moments], list(moments.values()))
    fits = found.get("fits") or found.get("largest") or []
    if fits:
        memories = [row["memory"] for row in fits]
        plots["fits"] = bars([one["setup"] for one in memories], [one["moments"][one["peak_phase"]] for one in memories])
    keys = [(part, colour.replace("$", "--")) for part, colour in COLOURS.items()]
    write_page(render_page(made, "size.html.j2", plots, found=found, fits=fits, keys=keys), path, "--html")


def bars(labels: Sequence[str], rows: Sequence[Mapping[str, int]]) -> Plot:
    """Return one horizontal bar for each row, stacked by part, in GiB (MiB if all are small)."""
    largest = max(sum(row.values()) for row in rows)
    unit, scale = ("GiB", GIB) if largest >= GIB else ("MiB", 2**20)
    names = [safe(label) for label in labels]
    data: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [row[part] / scale for row in rows],
            "width": 0.66,
            "marker": {"color": colour, "line": {"color": "$page", "width": 1}},
            "hovertext": [f"{part}: {bytes_words(row[part])} of {bytes_words(sum(row.values()))}" for row in rows],
            "hoverinfo": "text",
        }
        for part, colour in COLOURS.items()
        if any(row[part] for row in rows)
    ]
    height = 90 + 34 * len(rows)
    return {
        "data": data,
        "layout": layout(
            height=height, barmode="stack", xaxis=axis(f"{unit} per device", rangemode="tozero"), yaxis=rows_axis(names)
        ),
    }
