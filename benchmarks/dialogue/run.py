"""`python -m benchmarks dialogue`: what the dialogue recipe is made of, part by part, kept without `--again`.

identifiers   replacing identifiers in text against a loop of Python's `re`, and how many of those planted are found
"""

from __future__ import annotations

from benchmarks import in_parts

PARTS = ("identifiers",)


def main(arguments: list[str]) -> None:
    """Run the command."""
    in_parts.main("dialogue", PARTS, __doc__, arguments)
