"""Weigh the recorded gains of code that changes the run of an unmodified script against its size in lines.

Nothing is measured here: every number is quoted from another result file, together with its key there.
`python -m benchmarks.pruning_scripts` writes benchmarks/results/pruning_scripts.json.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, record

BEFORE = "f8d2554"
"""The commit whose lines count as "before"."""
SCRIPT = "src/hasten/script"


@dataclass(frozen=True)
class Part:
    """A part of the code to weigh.

    Attributes:
        techniques: Techniques that need it on a script.
        before: Its files at `BEFORE`.
        after: The files that replaced them; missing files count as zero lines.
        decision: The decision, and why.
    """

    techniques: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    decision: str


PARTS = {
    "writing standard output in a thread": Part(
        ("async_logging",),
        (f"{SCRIPT}/output/outlet.py", f"{SCRIPT}/output/printing.py", "src/hasten/train/lines.py"),
        ("src/hasten/train/metrics_file.py",),
        "deleted: no gain in any recorded tuning; jobs of our own loop keep it, with one executor",
    ),
    "joining batches of an evaluation loop": Part(
        ("validation_batch",),
        (*(f"{SCRIPT}/evaluation/{name}.py" for name in ("ahead", "groups", "guards")), f"{SCRIPT}/calls.py"),
        (),
        "deleted: faster on one script written for it, on no public script; a larger batch_size in the script does the same",
    ),
    "reading batches ahead": Part(
        ("loader_threads", "loader_workers"),
        tuple(f"{SCRIPT}/data/{name}.py" for name in ("foresee", "ahead", "reading", "changes")),
        tuple(f"{SCRIPT}/data/{name}.py" for name in ("lookahead", "workers", "iterator", "overrides")),
        "threads deleted: slower or undecided; worker processes kept, for PyTorch's own samplers alone",
    ),
    "caching samples": Part(
        ("sample_cache", "sample_store"), (f"{SCRIPT}/data/guard.py",), (f"{SCRIPT}/data/guard.py",), "kept: it pays most"
    ),
    "gathering rows of tables": Part(
        ("batched_reading",), (f"{SCRIPT}/data/gathering.py",), (f"{SCRIPT}/data/tables.py",), "kept: it pays for 81 lines"
    ),
    "trimming padding": Part(
        ("trim_padding",), (f"{SCRIPT}/data/cutting.py",), (f"{SCRIPT}/data/trimming.py",), "kept: it pays"
    ),
}


def run_pruning() -> Path:
    """Write the table."""
    rows = [
        {
            "part": name,
            "techniques": list(part.techniques),
            "lines_before": sum(_lines(f"{BEFORE}:{file}") for file in part.before),
            "lines_after": sum(_lines(f":{file}") for file in part.after),
            "recorded": [found for technique in part.techniques for found in recorded(technique)],
            "decision": part.decision,
        }
        for name, part in PARTS.items()
    ]
    return record("pruning_scripts", {"before": BEFORE, "rows": rows}, "python -m benchmarks.pruning_scripts")


def table(result: Mapping[str, Any]) -> str:
    """Return a row for each part: its lines before and after, and the recorded gains of its techniques on scripts."""
    lines = ["| part of `script/` | lines | recorded outcomes on scripts | decision |", "|---|---|---|---|"]
    for row in result["rows"]:
        on_scripts = (one for one in row["recorded"] if not one["source"].startswith("techniques.json"))
        gains = [f"{one['of']}: {_gain(one)}" for one in on_scripts]
        size = f"{row['lines_before']} to {row['lines_after']}"
        lines.append(f"| {row['part']} | {size} | {'<br>'.join(gains) or '-'} | {row['decision']} |")
    return "\n".join([*lines, "", f"Repeat it: `{result['command']}`, which quotes the recorded tunings."])


def _gain(one: Mapping[str, Any]) -> str:
    """Return the outcome of a comparison with its ratio, if its recorded reason has one."""
    ratio = re.search(r"\d+\.\d+x \(.*?\)", one["reason"])
    return f"{ratio[0]}, {one['outcome']}" if ratio else str(one["outcome"])


def recorded(technique: str) -> Iterator[dict[str, Any]]:
    """Yield every comparison of a technique on a script, and the one on the job made for it, with its source."""
    for number, row in enumerate(_read("groundtruth")["rows"]):
        for place, rung in enumerate((row.get("tune") or {}).get("rungs", ())):
            if rung["name"] == technique and rung["ratio"] is not None:
                yield _quoted(f"groundtruth.json#/rows/{number}/tune/rungs/{place}", row["name"], rung)
    for number, row in enumerate(_read("public")["rows"]):
        tuned = (row.get("tune") or {}).get("found") or {}
        for place, rung in enumerate(tuned["evidence"]["rungs"] if tuned else ()):
            if rung["name"] == technique and rung["comparison"] is not None:
                yield _quoted(f"public.json#/rows/{number}/tune/found/evidence/rungs/{place}", row["name"], rung)
    for number, row in enumerate(_read("techniques")["rows"]):
        if row["technique"] == technique:
            compared = row["comparison"]
            reason = f"{compared['verdict']}: {compared['ratio']:.2f}x ({compared['low']:.2f} to {compared['high']:.2f})"
            yield {
                "source": f"techniques.json#/rows/{number}",
                "of": row["job"],
                "outcome": row["verdict"],
                "reason": reason,
            }


def _quoted(source: str, of: str, rung: dict[str, Any]) -> dict[str, Any]:
    return {"source": source, "of": of, "outcome": rung["outcome"], "reason": rung["reason"]}


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _lines(revision: str) -> int:
    """Count the lines of a file at a revision; `:FILE` is the version staged for commit."""
    command = ["git", "-C", str(ROOT), "show", revision]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("\n")


if __name__ == "__main__":
    print(f"wrote {run_pruning()}", flush=True)
