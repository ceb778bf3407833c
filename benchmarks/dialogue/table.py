"""Write the tables of the guides from the recorded result."""

from __future__ import annotations

from collections.abc import Mapping
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
