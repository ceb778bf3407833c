"""The tables of docs/results/data.md, generated only from the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.data_layer.goals import PAGE_CACHE
from benchmarks.data_layer.system import SHUFFLES
from benchmarks.data_layer.systems import WORKLOADS

Row = Mapping[str, Any]


def headline(result: Row) -> str:
    """Summarize the result in one line."""
    judged = [goal for goal in result["goals"] if goal["verdict"] != "not measured"]
    return f"{result['goals_reached']} of {len(judged)} measured goals reached"


def tables(result: Row) -> str:
    """Return all tables of the page."""
    commits = ", ".join(result["row_commits"]) or "unknown"
    packages = ", ".join(f"{name} {number}" for name, number in result["packages"].items())
    lines = [f"Measured on {machines(result)}, at {commits}, with {packages}: {headline(result)}.", "", "## Goals", ""]
    lines += _goals(result["goals"])
    for workload in WORKLOADS:
        lines += _workload(workload, [row for row in result["rows"] if row["workload"] == workload])
    lines += _caches([row for row in result["rows"] if row["workload"] == "caches"])
    out = "; ".join(f"{name}: {why}" for name, why in result["left_out"].items())
    return "\n".join([*lines, "## Not measured", "", f"{out}."])


def machines(result: Row) -> str:
    """Name the machine; if there are several, each with its parts."""
    parts: dict[str, dict[str, None]] = {}
    for row in result["rows"]:
        parts.setdefault(row["measured"].get("where", result)["machine"], {})[row["workload"]] = None
    if len(parts) < 2:
        return str(next(iter(parts), result["machine"]))
    return " and ".join(f"{machine} ({', '.join(names)})" for machine, names in parts.items())


def _goals(goals: Sequence[Row]) -> list[str]:
    lines = ["| goal | verdict | measured (95 % interval) |", "|---|---|---|"]
    lines += [f"| {goal['goal']} | {goal['verdict']} | {_plain(goal['why'])} |" for goal in goals]
    return [*lines, ""]


def _workload(workload: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = [f"## {workload.capitalize()}", "", f"{WORKLOADS[workload].words}.", ""]
    read = next((row["bytes_per_s"] for row in rows if row["system"] == PAGE_CACHE), None)
    systems = [row for row in rows if row["system"] != PAGE_CACHE]
    over = "Hasten, times as fast"
    lines += [f"| system | shuffle | samples/s, warm | {over} | samples/s, cold | {over} | private memory | same samples |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in systems:
        held = f" ({_plain(row['against'])})" if row["against"] and row["against"] != "Hasten" else ""
        cells = (
            _plain(row["system"]) + (", a reference" if row["reference"] else ""),
            row["shuffle"],
            f"{row['samples_per_s']:,.0f}",
            _times(row.get("hasten_over_it")) + held,
            f"{row['cold_samples_per_s']:,.0f}",
            _times(row.get("cold_hasten_over_it")),
            f"{row['private_bytes'] / 2**20:,.0f} MiB",
            {None: "-", True: "yes", False: "NO"}[row.get("same")],
        )
        lines.append("| " + " | ".join(cells) + " |")
    kinds = dict.fromkeys(row["shuffle"] for row in systems)
    lines += ["", "Shuffle: " + "; ".join(f"{kind}: {SHUFFLES[kind]}" for kind in kinds) + "."]
    if read is not None:
        lines.append(f"Reading the same files from the page cache: {read / 2**30:.1f} GiB/s.")
    still = max(row["in_memory_before_cold_frac"] for row in systems)
    lines.append(f"Before a cold epoch at most {still:.0%} of its files were in memory.")
    return [*lines, ""]


def _plain(words: str) -> str:
    """Escape characters that Markdown would read as emphasis."""
    return words.replace("__", r"\_\_")


def _times(over: Row | None) -> str:
    return "-" if over is None else f"{over['ratio']:.2f}x ({over['low']:.2f} to {over['high']:.2f})"


def _caches(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Caches",
        "",
        "Microseconds for each value.",
        "",
        "| value, place | hit | hit among 64 at once | miss | put |",
    ]
    lines += ["|---|---|---|---|---|"]
    for row in rows:
        times = (f"{row['measured'][what]:,.1f}" for what in ("hit_us", "hit_many_us", "miss_us", "put_us"))
        lines.append(f"| {row['system']} | {' | '.join(times)} |")
    return [*lines, "", *_advice(rows)]


def _advice(rows: Sequence[Row]) -> list[str]:
    """Return which cache pays, and from which cost on."""
    hits = {row["system"]: row["measured"] for row in rows}
    words = []
    for value in dict.fromkeys(name.partition(": ")[0] for name in hits):
        redis, local = hits.get(f"{value}: Redis"), hits.get(f"{value}: LMDB")
        if redis is None or local is None:
            continue
        pays = redis["hit_us"] + redis["put_us"]
        words.append(
            f"- Redis pays for a value of {value} if making it takes more than {pays:,.0f} µs and other machines need it "
            f"too. A hit takes {redis['hit_us'] / local['hit_us']:.0f} times as long as in LMDB, which the processes of one "
            f"machine share as well; for 64 values at once, {redis['hit_many_us'] / local['hit_many_us']:.0f} times."
        )
    return [*words, ""] if words else []
