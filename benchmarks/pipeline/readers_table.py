"""Write the table of the guide from the recorded result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PHASES = {"quiet": "without changes", "changes": "during changes", "kills": "during kills"}


def table(found: Mapping[str, Any]) -> str:
    """Return what readers saw that load all the time."""
    part = found.get("pipeline", {}).get("parts", {}).get("readers")
    if part is None:
        return "The load test was not recorded yet: `python -m benchmarks pipeline --part readers`."
    changes, loads, seen = part["changes"], part["loads"], part["seen_ms"]
    times = {name: part["load_ms"][phase] for phase, name in PHASES.items()}
    shares = (f"{one['seen']:.3f} for {one['asked']:g} ({one['low']:.3f} to {one['high']:.3f})" for one in part["shares"])
    rows = {
        f"loads of {part['readers']} readers": ", ".join(f"{loads[phase]:,} {name}" for phase, name in PHASES.items()),
        "failed loads": f"{len(part['failed'])}",
        "loads of inconsistent weights": f"{part['inconsistent']}",
        "changes": f"{sum(changes.values())}, with {changes['gate']} failed gates and {changes['restore']} restores",
        "kills": f"{part['kills']}, of which {part['kills_within_a_change']} left a change half done",
        "share of keys on trial (99.9 % interval)": "; ".join(shares),
        "from `promote` to the first reader": f"{seen['median']:.0f} ms, at most {seen['largest']:.0f} ms; "
        f"`promote` itself takes {part['promote_ms']['median']:.0f} ms",
        "a load": "; ".join(f"{one['median']:.1f} ms, p99 {one['p99']:.0f} ms {name}" for name, one in times.items()),
    }
    lines = [f"| {name} | {words} |" for name, words in rows.items()]
    return "\n".join(["| measured | |", "|---|---|", *lines, "", f"Measured on {part['where']['machine']}."])
