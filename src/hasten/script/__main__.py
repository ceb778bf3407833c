"""`python -m hasten.script [--json FILE] script.py args`: watch a script until it ends, and exit with its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hasten.script.entry.launch import exit_like, run_watched


def main() -> None:
    """Run the script, write the observations on request, report watch failures on stderr, and exit like the script."""
    command = sys.argv[1:]
    path = None
    if command[:1] == ["--json"]:
        path, command = Path(command[1]), command[2:]
    if not command:
        sys.exit("usage: python -m hasten.script [--json FILE] (script.py | -m module) [args ...]")
    result = run_watched(command)
    for rank, why in result.failures.items():
        sys.stderr.write(f"hasten: rank {rank} was not watched, or only in part:\n{why}")
    if path is not None:
        path.write_text(json.dumps(result.ranks), encoding="utf-8")
    exit_like(result.code)


if __name__ == "__main__":
    main()
