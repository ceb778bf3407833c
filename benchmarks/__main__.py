"""Measure again what benchmarks/results holds, for this machine; all of it takes about an hour and a half."""

from __future__ import annotations

import argparse

from benchmarks.checkpointing import run_checkpointing
from benchmarks.gate import run_gate
from benchmarks.honesty import run_aa, run_power
from benchmarks.own_cost import TURNS, run_own_cost
from benchmarks.rivals.compare import ROUNDS, run_rivals
from benchmarks.tuning import run_diagnosis, run_example

NAMES = ("own-cost", "text", "image", "rivals-text", "rivals-image", "diagnosis", "gate", "checkpointing", "aa", "power")


def main() -> None:
    """Run one benchmark, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*NAMES, "all"], default="all")
    parser.add_argument(
        "--count", type=int, help="comparisons (aa, power), turns (own-cost, checkpointing) or rounds (rivals)"
    )
    parser.add_argument("--budget", help="tuning budget of each job (text, image, diagnosis)")
    parser.add_argument("--seed", type=int, help="first seed of the tuning (text, image); the job's own unless given")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="judge these cases or jobs (gate); other rows stay")
    asked = parser.parse_args()
    if asked.only:
        print(f"wrote {run_gate(asked.only)}", flush=True)
        return
    for name in NAMES if asked.name == "all" else (asked.name,):
        print(f"measuring {name}", flush=True)
        print(f"wrote {_run(name, asked.count, asked.budget, asked.seed)}", flush=True)


def _run(name: str, number: int | None, budget: str | None, seed: int | None) -> object:
    if name == "gate":
        return run_gate()
    if name == "checkpointing":
        return run_checkpointing(number or 9)
    if name == "aa":
        return run_aa(number or 40)
    if name == "power":
        return run_power(number or 20)
    if name == "own-cost":
        return run_own_cost(number or TURNS)
    if name == "diagnosis":
        return run_diagnosis(budget or "3m")
    if name.startswith("rivals-"):
        return run_rivals(name.removeprefix("rivals-"), number or ROUNDS)
    return run_example(name, budget or "10m", seed)


if __name__ == "__main__":
    main()
