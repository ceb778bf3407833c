"""Repeat the measurements in benchmarks/results on this machine. Running all of them takes about two and a half hours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks.activation_checkpointing import run_checkpointing
from benchmarks.alerts import main as alerts
from benchmarks.around import ROUNDS as AROUND_ROUNDS
from benchmarks.around import run_around
from benchmarks.chaos import main as chaos
from benchmarks.check import main as check
from benchmarks.checkpoints.run import main as checkpoints
from benchmarks.data_layer.run import data
from benchmarks.gate import run_gate
from benchmarks.goodput import PAIRS as WHOLE_PAIRS
from benchmarks.goodput import run_goodput
from benchmarks.groundtruth.score import main as groundtruth
from benchmarks.honesty import run_aa, run_power
from benchmarks.monitor_cost import TURNS as MONITOR_TURNS
from benchmarks.monitor_cost import run_monitor_cost
from benchmarks.own_cost import TURNS, run_own_cost
from benchmarks.packing import run_packing
from benchmarks.progress_cost import TURNS as PROGRESS_TURNS
from benchmarks.progress_cost import run_progress_cost
from benchmarks.proof import PAIRS as PROOF_PAIRS
from benchmarks.proof import run_proof
from benchmarks.public.run import main as public
from benchmarks.ranks import TURNS as RANKS_TURNS
from benchmarks.ranks import run_ranks
from benchmarks.rivals.compare import ROUNDS, run_rivals
from benchmarks.run_start import TURNS as START_TURNS
from benchmarks.run_start import run_start
from benchmarks.scaling import ROUNDS as SCALING_ROUNDS
from benchmarks.scaling import run_scaling
from benchmarks.search import run_search
from benchmarks.size import run_size
from benchmarks.techniques import PAIRS, run_techniques
from benchmarks.tuning import run_diagnosis, run_example
from hasten.cli.say import parse_duration

NAMES = (
    "own-cost", "text", "image", "rivals-text", "rivals-image", "diagnosis", "gate", "checkpointing", "techniques",
    "packing", "search", "around", "goodput", "groundtruth", "ranks", "aa", "power",
    "data", "proof", "size", "chaos", "checkpoints", "progress", "scaling", "monitor-cost", "run-start",
)  # fmt: skip
PACKING_BUDGET, SEARCH_BUDGET = "3m", "50m"


def _recipes(arguments: list[str]) -> None:
    from benchmarks.recipes.run import main as recipes  # noqa: PLC0415  needs the extra `recipes`

    recipes(arguments)


def _datacube(arguments: list[str]) -> None:
    from benchmarks.datacube.run import main as datacube  # noqa: PLC0415  needs the extra `datacube`

    datacube(arguments)


def _dialogue(arguments: list[str]) -> None:
    from benchmarks.dialogue.run import main as dialogue  # noqa: PLC0415  needs the extra `private`

    dialogue(arguments)


def _pipeline(arguments: list[str]) -> None:
    from benchmarks.pipeline.run import main as pipeline  # noqa: PLC0415  needs the extra `pipeline`

    pipeline(arguments)


OWN_OPTIONS: dict[str, Callable[[list[str]], None]] = {
    "alerts": alerts, "chaos": chaos, "check": check, "checkpoints": checkpoints, "data": data, "datacube": _datacube,
    "dialogue": _dialogue,
    "groundtruth": groundtruth, "pipeline": _pipeline, "public": public, "recipes": _recipes,
}  # fmt: skip
"""Benchmarks with options of their own: `python -m benchmarks NAME --help` lists them."""


def main() -> None:
    """Run one benchmark, or all of them."""
    if sys.argv[1:2] and sys.argv[1] in OWN_OPTIONS:
        OWN_OPTIONS[sys.argv[1]](sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*NAMES, "all"], default="all")
    parser.add_argument(
        "--count",
        type=int,
        help="comparisons (aa, power), turns (own-cost, progress, monitor-cost, run-start, checkpointing, ranks), "
        "pairs (techniques, goodput, proof), rounds (rivals)",
    )
    parser.add_argument(
        "--budget", help="budget of each job, for its tuning (text, image, diagnosis) or its subsets (search)"
    )
    parser.add_argument("--seed", type=int, help="first seed of the tuning (text, image); defaults to the job's own")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CASE",
        help="only these cases or jobs (gate, techniques, search, proof); other rows stay",
    )
    parser.add_argument(
        "--kept", action="store_true", help="search: keep the recorded exhaustive search, and run only Hasten's own again"
    )
    asked = parser.parse_args()
    if asked.kept and asked.name != "search":
        parser.error("--kept can only be used with search")
    if asked.name == "search":
        budget_s = parse_duration(asked.budget or SEARCH_BUDGET)
        print(f"wrote {run_search(asked.only or (), budget_s, kept=asked.kept)}", flush=True)
        return
    if asked.only:
        print(f"wrote {_run_some(asked.name, asked.only, asked.count)}", flush=True)
        return
    for name in NAMES if asked.name == "all" else (asked.name,):
        print(f"measuring {name}", flush=True)
        if name in OWN_OPTIONS:
            OWN_OPTIONS[name]([])
            continue
        print(f"wrote {_run(name, asked.count, asked.budget, asked.seed)}", flush=True)


def _run(name: str, number: int | None, budget: str | None, seed: int | None) -> object:
    runs: dict[str, Callable[[], object]] = {
        "own-cost": lambda: run_own_cost(number or TURNS),
        "diagnosis": lambda: run_diagnosis(budget or "3m"),
        "gate": run_gate,
        "checkpointing": lambda: run_checkpointing(number or 9),
        "techniques": lambda: run_techniques(number or PAIRS),
        "packing": lambda: run_packing(parse_duration(budget or PACKING_BUDGET)),
        "search": lambda: run_search(budget_s=parse_duration(budget or SEARCH_BUDGET)),
        "size": run_size,
        "around": lambda: run_around(number or AROUND_ROUNDS),
        "goodput": lambda: run_goodput(number or WHOLE_PAIRS),
        "proof": lambda: run_proof(pairs=number or PROOF_PAIRS),
        "progress": lambda: run_progress_cost(number or PROGRESS_TURNS),
        "ranks": lambda: run_ranks(number or RANKS_TURNS),
        "scaling": lambda: run_scaling(number or SCALING_ROUNDS),
        "run-start": lambda: run_start(number or START_TURNS),
        "monitor-cost": lambda: run_monitor_cost(number or MONITOR_TURNS),
        "aa": lambda: run_aa(number or 40),
        "power": lambda: run_power(number or 20),
    }
    if name in runs:
        return runs[name]()
    if name.startswith("rivals-"):
        return run_rivals(name.removeprefix("rivals-"), number or ROUNDS)
    return run_example(name, budget or "10m", seed)


def _run_some(name: str, only: list[str], number: int | None) -> object:
    """Measure some rows of a benchmark; other rows stay."""
    if name == "techniques":
        return run_techniques(number or PAIRS, only)
    if name == "proof":
        return run_proof(only, number or PROOF_PAIRS)
    return run_gate(only)


if __name__ == "__main__":
    main()
