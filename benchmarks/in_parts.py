"""Run a benchmark that is a folder of parts: modules with `run(found)`, which returns a result with its `goals`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import record_parts


def run_parts(name: str, parts: Sequence[str], *, again: bool = False) -> Path:
    """Measure the requested parts that are missing, or all of them again.

    Args:
        name: The folder, and the name of the result.
        parts: Modules of the folder; each gets the parts measured so far.
        again: Repeat existing parts.
    """
    return record_parts(
        name,
        parts,
        lambda part, found: import_module(f"benchmarks.{name}.{part}").run(found),
        lambda found: {"goals": goals(found)},
        again=again,
    )


def goals(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goals of all measured parts, with what was seen: `PART NAME` to goal, seen and reached."""
    return {f"{part} {name}": goal for part, result in found.items() for name, goal in result["goals"].items()}


def main(name: str, parts: Sequence[str], words: str, arguments: list[str]) -> None:
    """Run the command `python -m benchmarks NAME`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=parts, nargs="+", default=parts)
    parser.add_argument("--again", action="store_true", help="repeat existing parts")
    given = parser.parse_args(arguments)
    print(f"wrote {run_parts(name, given.part, again=given.again)}", flush=True)
