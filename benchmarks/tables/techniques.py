"""Tables of techniques measured alone, on jobs made for them."""

from __future__ import annotations

from typing import Any

from benchmarks.technique_cases import words_of
from hasten.report.catalogue import compared_words


def techniques_words(result: dict[str, Any]) -> str:
    """Summarize the outcomes of the techniques on the jobs made for them in one line."""
    rows, outcomes = result["rows"], result["outcomes"]
    names = {"faster": "faster", "same": "the same", "slower": "slower", "undecided": "undecided"}
    names |= {"refused": "refused here", "failed": "failed"}
    counted = ", ".join(f"{outcomes[key]} {words}" for key, words in names.items() if outcomes.get(key))
    return f"{len(rows)} cases of {len({row['technique'] for row in rows})} techniques: {counted}"


def table(result: dict[str, Any]) -> list[str]:
    """Return each technique with and without, on the job made for it: speed and peak memory, or why there is no number."""
    lines = [
        f"{techniques_words(result)}. On {result['machine']}. Repeat it: `{result['command']}`.",
        "",
        "| technique | job | speed | peak memory | outcome |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        seen, memory = row["comparison"], row["memory"] or {}
        without, with_it = memory.get("without_bytes"), memory.get("with_bytes")
        told = f"{without / 2**20:.0f} to {with_it / 2**20:.0f} MiB" if without and with_it else "-"
        measured = row["outcome"] == "measured"
        speed = ratio_words(seen) if measured else "-"
        outcome = f"{row['verdict']}{compared_words(row)}" if measured else f"{row['outcome']}: {row['reason']}"
        chosen = "".join(f"<br>{name}={value}" for name, value in row["settings"].items())
        cells = [f"`{row['technique']}`{chosen}", words_of(row), speed, told, outcome]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return [*lines, ""]


def packing(result: dict[str, Any]) -> list[str]:
    """Return packing compared with batches of similar length and with the padded job."""
    lines = [
        "The rival puts samples of similar length into one batch and cuts it to its longest. Both train the same samples",
        f"for a whole epoch. The goal is {result['goal']}x over the rival. Repeat it: `{result['command']}`.",
        "",
        "| job | padding | if cut | if of similar length | gain over padded | over cut | over similar length | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    measured = [row for row in result["jobs"].values() if "skipped" not in row]
    for row in measured:
        padding = " | ".join(f"{row['data']['padding_frac'][name]:.0%}" for name in ("padded", "cut", "like_length"))
        gains = " | ".join(ratio_words(row[f"against_{name}"]) for name in ("padded", "cut", "rival"))
        lines.append(f"| `{row['target']}` | {padding} | {gains} | {row['verdict']} |")
    skipped = [row for row in result["jobs"].values() if "skipped" in row]
    return [*lines, "", *(line for row in skipped for line in (f"`{row['target']}`: {row['skipped']}.", ""))]


def checkpointing(result: dict[str, Any]) -> list[str]:
    """Return memory and time of checkpointing by budget, compared with recomputing everything and nothing."""
    lines = [
        f"Asked to keep {1 - result['asked_frac']:.0%} of the activations of `{result['target']}`.",
        f"Repeat it: `{result['command']}`.",
        "",
        "| way | activations saved | saved at the peak of a step | peak memory | time |",
        "|---|---|---|---|---|",
    ]
    for arm, row in result["arms"].items():
        peak = f"{row['peak_rss_bytes'] / 2**20:.0f} MiB"
        saved = f"{row['saved_frac']:.1%} | {row['peak_saved_frac']:.1%}"
        lines.append(f"| {arm} | {saved} | {peak} | {row['time_ratio']:.2f}x |")
    return [*lines, ""]


def ratio_words(row: dict[str, Any], name: str = "ratio") -> str:
    """Format a ratio with its interval; a dash if there is none."""
    return "-" if row[name] is None else f"{row[name]:.2f}x ({row['low']:.2f} to {row['high']:.2f})"
