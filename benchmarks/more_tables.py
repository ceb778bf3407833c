"""Tables of the single benchmarks: the gate judged by itself, rivals side by side, checkpointing by budget."""

from __future__ import annotations

from typing import Any


def gate_table(gate: dict[str, Any]) -> list[str]:
    """Every seeded defect and every innocent change, and what became of it."""
    caught, defects = gate["caught"], gate["defects"]
    refused, innocents = gate["refused_innocents"], gate["innocents"]
    lines = ["## The numerics gate, judged by itself", ""]
    lines += [
        f"{caught} of {defects} seeded defects were refused, and {refused} of {innocents} innocent changes.",
        f"Repeat it: `{gate['command']}`.",
        "",
        "| change | claims to be | is | outcome | by | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in gate["rows"]:
        outcome = "refused" if row["caught"] else "let through"
        why = str(row["why"]).replace("|", "/")
        lines.append(f"| {row['name']} | {row['class']} | {row['kind']} | {outcome} | {row['by'] or '-'} | {why} |")
    return [*lines, ""]


def rivals_table(result: dict[str, Any]) -> list[str]:
    """Every arm against the naive one, and Upshift against it."""
    name = result["name"].removeprefix("rivals_")
    lines = [f"## Side by side: {name}", ""]
    lines += [
        f"Fresh processes taking turns in one run (`{result['command']}`); samples a second, as ratios.",
        "",
        "| trained by | against the naive loop | Upshift against it |",
        "|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        ours = f"{row['upshift_over_it']:.2f}x ({row['upshift_over_it_low']:.2f} to {row['upshift_over_it_high']:.2f})"
        lines.append(f"| {arm} | {row['ratio']:.2f}x ({row['low']:.2f} to {row['high']:.2f}) | {ours} |")
    return [*lines, ""]


def checkpointing_table(result: dict[str, Any]) -> list[str]:
    """Memory and time of checkpointing by budget against everything and nothing."""
    lines = ["## Activation checkpointing by budget", ""]
    lines += [
        f"Asked to keep {1 - result['asked_frac']:.0%} of the activations of `{result['target']}` (`{result['command']}`).",
        "",
        "| arm | activations saved | saved at the peak of a step | peak memory | time of a turn |",
        "|---|---|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        peak = f"{row['peak_rss_bytes'] / 2**20:.0f} MiB"
        saved = f"{row['saved_frac']:.1%} | {row['peak_saved_frac']:.1%}"
        lines.append(f"| {arm} | {saved} | {peak} | {row['time_ratio']:.2f}x |")
    return [*lines, ""]
