"""Write the tables of the guides from the recorded result."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any


def identifiers(result: Mapping[str, Any]) -> str:
    """Return how fast identifiers are replaced, and how many of those planted are found."""
    part = result["parts"]["identifiers"]
    ours, theirs = (part["bytes_per_s"][name] / 1e6 for name in ("Hasten", "loop of re"))
    rows = [
        (
            "text per second",
            f"{ours:.1f} MB; a loop of Python's `re` {theirs:.2f} MB: {part['goals']['speed']['seen']:.1f}x",
        ),
        ("planted identifiers found", f"{part['recall']:.1%} of {sum(part['planted'].values()):,}"),
        ("names without a cue or a common first name found", f"{part['recall_of_names_without_a_cue']:.1%}"),
        ("replacements that meet an identifier", f"{part['precision']:.1%}"),
    ]
    return "\n".join(["| measured | |", "|---|---|", *(f"| {name} | {words} |" for name, words in rows)])


def goals(result: Mapping[str, Any]) -> str:
    """Return each goal with what was seen, and which are missed."""
    lines = ["| measured | goal | seen | |", "|---|---|---|---|"]
    for name, goal in result["goals"].items():
        words = (_figure(goal[key]) for key in ("goal", "seen"))
        lines.append(f"| {name} | {' | '.join(words)} | {'' if goal['reached'] else 'missed'} |")
    return "\n".join([*lines, "", f"Measured on {result['machine']}."])


def ways(result: Mapping[str, Any]) -> str:
    """Return the median seconds of each way, for the parts that were measured."""
    rows = []
    for name, part in result["parts"].items():
        for case, seconds in _cases(part):
            cells = ", ".join(f"{way} {median(values):.3g} s" for way, values in seconds.items())
            rows.append(f"| {name}{case and f', {case}'} | {cells} |")
    return "\n".join(["| part | median of each way |", "|---|---|", *rows])


def packing(result: Mapping[str, Any]) -> str:
    """Return the time of a training step on the same conversations, and the share of padding, of each way."""
    part = result["parts"]["packing"]
    words = {"padded": f"padded to {part['row']:,} tokens", "longest": "padded to the longest of the batch"}
    words |= {"TRL": "packed by TRL, masked by Transformers", "Hasten": "packed by Hasten"}
    lines = ["| | step | Hasten is faster | padding |", "|---|---|---|---|"]
    for name, way in words.items():
        padding = part["share_of_padding"].get(name)
        cells = f"{median(part['seconds'][name]):.2f} s | {part['ratio'][name]:.1f}x"
        lines.append(f"| {way} | {cells} | {'' if padding is None else f'{padding:.1%}'} |")
    return "\n".join(lines)


def steps(result: Mapping[str, Any]) -> str:
    """Return the time of some updates of both forms of each job."""
    lines = ["| job | naive | Hasten | faster | largest difference of losses |", "|---|---|---|---|---|"]
    for name, step in result["parts"]["job"]["steps"].items():
        naive, ours = (median(step["seconds"][way]) for way in ("naive", "Hasten"))
        off = step["relative_difference_of_losses"]
        lines.append(f"| {name} | {naive:.2f} s | {ours:.2f} s | {step['ratio']:.1f}x | {off:.0e} |")
    return "\n".join(lines)


def headline(result: Mapping[str, Any]) -> str:
    """Return one line for the summary: the job, and the goals that were missed."""
    job = result["parts"]["job"]["evidence"]["final"]
    missed = [name for name, goal in result["goals"].items() if not goal["reached"]]
    words = f"the supervised job **{job['ratio']:.2f}x** faster ({job['low']:.2f} to {job['high']:.2f})"
    return f"{words}; missed: {', '.join(missed) or 'nothing'}"


def _cases(part: Mapping[str, Any]) -> list[tuple[str, Mapping[str, list[float]]]]:
    """Return the measurements of a part whose ways took turns."""
    if "digits" in part:
        return [(case, part[case]["seconds"]) for case in ("digits", "hour")]
    if "kinds" in part:
        return [(f"{kind} {form}", one["seconds"][form]) for kind, one in part["kinds"].items() for form in one["seconds"]]
    seconds = part.get("seconds", {})
    return [("", seconds)] if seconds and all(isinstance(values, list) for values in seconds.values()) else []


def _figure(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("_", " ")
    return f"{value / 2**20:,.0f} MiB" if value >= 2**20 else f"{value:.4g}"
