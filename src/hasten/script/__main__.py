"""`python -m hasten.script [--json FILE] script.py args`: run a script to its end, watched, and exit as it exits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hasten.script.entry.launch import exit_like, run_watched


def main() -> None:
    """Run, keep what was seen if asked, say on stderr what of ours failed, and exit as the script does."""
    words = sys.argv[1:]
    path = None
    if words[:1] == ["--json"]:
        path, words = Path(words[1]), words[2:]
    if not words:
        sys.exit("usage: python -m hasten.script [--json FILE] (script.py | -m module) [args ...]")
    seen = run_watched(words)
    for rank, why in seen.failures.items():
        sys.stderr.write(f"hasten: rank {rank} was not watched, or not all of it:\n{why}")
    if path is not None:
        path.write_text(json.dumps(seen.ranks), encoding="utf-8")
    exit_like(seen.code)


if __name__ == "__main__":
    main()
