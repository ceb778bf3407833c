"""Measure ten reports on 50,000 conversations that grow by a tenth before each, against scanning all again, in turns.

merged    the counts of the new conversations are added to those of the report before
ledger    all conversations are given each time, and only blocks that are new are scanned (`Ledger`)
again     all conversations are scanned for each report, by the same scanner

All ways must return equal counts. Scanning each conversation once needs 1 / 5.5 of scanning again, which is the ceiling.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from benchmarks.dialogue.scan import drawn_texts
from benchmarks.turns import goal, times
from hasten.recipes.dialogue.bias.scan import Counts, Ledger, Scanner

TALKS, REPORTS, ROUNDS = 50_000, 10, 7
GOAL = 5.0
Reports = list[Counts]


def run(_found: Mapping[str, Any], talks: int = TALKS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure all ways.

    Args:
        talks: Number of conversations.
        rounds: Number of rounds.
    """
    texts, scanner = drawn_texts(talks), Scanner()
    step = -(-talks // REPORTS)
    ends = range(step, talks + step, step)

    def merged(texts: list[str]) -> Reports:
        reports = [scanner.count(())]
        for end in ends:
            reports.append(reports[-1] + scanner.count(texts[end - step : end]))
        return reports[1:]

    def ledger(texts: list[str]) -> Reports:
        kept = Ledger(scanner)
        return [kept.report(texts[:end]) for end in ends]

    def again(texts: list[str]) -> Reports:
        return [scanner.count(texts[:end]) for end in ends]

    ways: dict[str, Callable[[list[str]], Reports]] = {"merged": merged, "ledger": ledger, "again": again}
    found = [way(texts) for way in ways.values()]
    if not found[0] == found[1] == found[2]:
        raise AssertionError("the reports differ")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            fresh = [text[:1] + text[1:] for text in texts]  # Python keeps the hash of a text that was hashed
            began = perf_counter()
            ways[name](fresh)
            seconds[name].append(perf_counter() - began)
    ratio = {name: times(seconds["again"], seconds[name]) for name in ("merged", "ledger")}
    return {
        "conversations": talks,
        "reports": REPORTS,
        "over_again": ratio,
        "seconds": seconds,
        "goals": {"speed over scanning again": goal(GOAL, ratio["merged"])},
    }
