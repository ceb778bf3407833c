"""The table of docs/results/checkpoints.md: the cost of a checkpoint."""

from __future__ import annotations

from typing import Any

from hasten.report.words import bytes_words


def table(result: dict[str, Any]) -> str:
    """Return a Markdown table with one row per way and size."""
    lines = [
        "| state | way | training waits | training loses in total | on disk after | file |",
        "|---|---|---|---|---|---|",
    ]
    for size, found in result["sizes"].items():
        for name, row in sorted(found["ways"].items(), key=lambda item: item[1]["lost_s"]):
            low, high = row["lost_range_s"]
            lines.append(
                f"| {size} MB | {name} | {1000 * row['stall_s']:.0f} ms | {row['lost_s']:.2f} s ({low:.2f} to {high:.2f}) | "
                f"{row['durable_s']:.2f} s | {bytes_words(int(row['num_bytes']))} |"
            )
    words = [f"- {size} MB: {found['words']}." for size, found in result["sizes"].items()]
    return "\n".join([f"On {result['machine']}.", "", *lines, "", *words])
