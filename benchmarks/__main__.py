"""Measure again what benchmarks/results holds, for this machine; all of it takes about an hour and a half."""

from __future__ import annotations

import argparse

from benchmarks.honesty import run_aa, run_power
from benchmarks.own_cost import run_own_cost
from benchmarks.tuning import run_diagnosis, run_example

NAMES = ("own-cost", "text", "image", "diagnosis", "aa", "power")


def main() -> None:
    """Run one benchmark, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*NAMES, "all"], default="all")
    parser.add_argument("--count", type=int, help="comparisons (aa, power) or turns (own-cost)")
    parser.add_argument("--budget", help="tuning budget of each job (text, image, diagnosis)")
    asked = parser.parse_args()
    for name in NAMES if asked.name == "all" else (asked.name,):
        print(f"measuring {name}", flush=True)
        print(f"wrote {_run(name, asked.count, asked.budget)}", flush=True)


def _run(name: str, number: int | None, budget: str | None) -> object:
    if name == "aa":
        return run_aa(number or 40)
    if name == "power":
        return run_power(number or 20)
    if name == "own-cost":
        return run_own_cost(number or 31)
    if name == "diagnosis":
        return run_diagnosis(budget or "3m")
    return run_example(name, budget or "10m")


if __name__ == "__main__":
    main()
