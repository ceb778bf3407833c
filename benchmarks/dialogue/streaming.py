"""Measure the memory of reading batches from the stores of the stages against loading all conversations with json.

100,000 conversations are generated and prepared. Each measurement runs in a process of its own with the same imports, goes
through all conversations once in batches, and reports how much its memory grew at most: private memory, which is not shared
with the page cache, and all resident memory, with the pages of files that are mapped.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.record import ROOT
from benchmarks.turns import goal, memory
from hasten.recipes.dialogue.packing import PackedConversations
from hasten.recipes.dialogue.prepare import TRAIN, VALID, prepare
from hasten.recipes.dialogue.synth import write

TALKS, ROUNDS = 100_000, 3
GOAL = 0.7
"""Smallest accepted saving, as a share."""
ROW_TOKENS, ROWS, BATCH = 1024, 8, 32
FIGURES = {"private": "RssAnon", "resident": "VmRSS"}


def run(_found: Mapping[str, Any], talks: int = TALKS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure both ways.

    Args:
        talks: Number of conversations.
        rounds: Number of rounds.
    """
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    with TemporaryDirectory() as name:
        folder = Path(name)
        began = perf_counter()
        write(folder / "source", talks, 0, lambda: None)
        prepare(folder / "source", folder / "prepared", num_tokens=1024)
        prepared_s = perf_counter() - began
        for _ in range(rounds):
            for way in random.sample(list(WAYS), len(WAYS)):
                command = [sys.executable, "-m", "benchmarks.dialogue.streaming", way, name]
                made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
                taken[way].append(json.loads(made.stdout))
        source_bytes = (folder / "source" / "conversations.jsonl").stat().st_size
        store_bytes = sum(path.stat().st_size for part in (TRAIN, VALID) for path in _files(folder / "prepared" / part))
    if {one["conversations"] for found in taken.values() for one in found} != {talks}:
        raise AssertionError("a way did not read all conversations")
    growth = {way: {name: median(one["growth"][name] for one in found) for name in FIGURES} for way, found in taken.items()}
    saved = {name: 1 - growth["Hasten"][name] / growth["json"][name] for name in FIGURES}
    return {
        "conversations": talks,
        "source_bytes": source_bytes,
        "store_bytes": store_bytes,
        "prepared_s": prepared_s,
        "growth_bytes": growth,
        "samples": taken,
        "goals": {f"{name} memory saved": goal(GOAL, share) for name, share in saved.items()},
    }


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _hasten(folder: Path) -> int:
    seen = 0
    for part in (TRAIN, VALID):
        packed = PackedConversations(folder / "prepared" / part, length=ROW_TOKENS)
        for start in range(0, len(packed), ROWS):
            numbers = range(start, min(start + ROWS, len(packed)))
            if len(packed.__getitems__(numbers)) != len(numbers):
                raise AssertionError("a row is missing")
            seen += sum(int((packed.pieces(row)[:, 2] == 0).sum()) for row in numbers)  # first tokens
    return seen


def _json(folder: Path) -> int:
    with (folder / "source" / "conversations.jsonl").open(encoding="utf-8") as file:
        talks = [json.loads(line) for line in file]
    return sum(len(talks[start : start + BATCH]) for start in range(0, len(talks), BATCH))


WAYS: dict[str, Callable[[Path], int]] = {"Hasten": _hasten, "json": _json}


def main() -> None:
    """Measure one way, and print the growth of the memory."""
    before = {name: memory(figure) for name, figure in FIGURES.items()}
    most, ended = dict(before), threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            for name, figure in FIGURES.items():
                most[name] = max(most[name], memory(figure))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = perf_counter()
    try:
        seen = WAYS[sys.argv[1]](Path(sys.argv[2]))
    finally:
        ended.set()
        watcher.join()
    growth = {name: most[name] - before[name] for name in FIGURES}
    found = {"conversations": seen, "growth": growth, "most": most, "seconds": perf_counter() - began}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
