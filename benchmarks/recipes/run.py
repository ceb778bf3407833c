"""`python -m benchmarks recipes`: both recipes on real data, part by part. Existing parts are kept without `--again`.

detection-train   tune the naive detection job on blood cells
ocr-train         tune the naive text-detection job on receipts
maps              target maps against the official algorithm, and docTR's if it is installed
detection-rivals  the same training with Lightning, in turns
ocr-rivals        the same for receipts
detection-learn   a whole run under the tuned plan
ocr-learn         the same for receipts
ocr-valid         a validation pass with the trained network in both forms, relative to training on as many images
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recipes.doctr_maps import run as run_doctr
from benchmarks.recipes.learn import run_learning, weights_of
from benchmarks.recipes.maps import ROUNDS
from benchmarks.recipes.maps import run as run_maps
from benchmarks.recipes.passes import NAIVE, REAL, run_passes
from benchmarks.record import ROOT, record_parts
from benchmarks.rivals.compare import side_by_side
from benchmarks.tuning import tuned
from hasten.core.plan import Plan
from hasten.optimizations import catalogue

JOBS = {
    "detection": "benchmarks/recipes/jobs/bccd.py:NaiveBccdJob",
    "ocr": "benchmarks/recipes/jobs/sroie.py:NaiveSroieJob",
}
ARMS = ("naive", "Lightning", "Lightning, bf16-mixed", "Lightning, bf16-mixed, 2 workers", "Hasten")
METRICS = {"detection": "map50", "ocr": "hmean"}
GOALS = {
    "detection_train_low": 2.5, "ocr_train_low": 1.9, "ocr_valid_low": 4.5, "detection_map50": 0.80, "ocr_hmean": 0.75,
    "ocr_maps_exact": 10.0,
}  # fmt: skip
"""Smallest accepted values."""
VALID_GOAL = 0.7
"""Largest accepted time of a validation pass as a fraction of a training pass."""
BUDGET = "175m"
"""Excluded: its validation quality is judged by five to ten whole runs of each form, after a search of fifteen minutes."""
WITHOUT = ("optimizer_batch",)
"""Excluded: each of its settings is judged by whole runs as well."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How to run the tunings.

    Attributes:
        budget: Budget of each.
        without: Techniques to exclude; some cost more time than the whole proof.
        begun: Folder of an interrupted tuning, which is resumed.
    """

    budget: str = BUDGET
    without: tuple[str, ...] = WITHOUT
    begun: Path | None = None


def run(parts: list[str], asked: Asked, *, again: bool = False) -> Path:
    """Measure the requested parts that are missing.

    Args:
        parts: Names of the parts.
        asked: How to run the tunings among them.
        again: Repeat existing parts.
    """
    return record_parts("recipes", parts, lambda part, found: PARTS[part](found, asked), figures, again=again)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """Return the summary numbers, None if not measured, and whether each reaches its goal."""
    valid, maps = found.get("ocr-valid"), found.get("maps")
    figure: dict[str, float | None] = {
        "detection_train_low": _low(found.get("detection-train")),
        "ocr_train_low": _low(found.get("ocr-train")),
        "ocr_valid_low": valid["valid_gain"]["low"] if valid else None,
        "ocr_valid_over_train": valid["valid_over_train"][REAL]["ratio"] if valid else None,
        "ocr_valid_over_train_naive": valid["valid_over_train"][NAIVE]["ratio"] if valid else None,
        "detection_map50": found["detection-learn"]["best"] if "detection-learn" in found else None,
        "ocr_hmean": found["ocr-learn"]["best"] if "ocr-learn" in found else None,
        "ocr_maps_exact": maps["goals"]["exact_quads"]["seen"] if maps else None,
    }
    reached = {name: seen >= GOALS[name] for name, seen in figure.items() if seen is not None and name in GOALS}
    if valid:
        reached["ocr_valid_over_train"] = valid["valid_over_train"][REAL]["ratio"] <= VALID_GOAL
    return {**figure, "goals": {**GOALS, "ocr_valid_over_train": VALID_GOAL}, "reached": reached}


def _low(part: dict[str, Any] | None) -> float | None:
    """Return the lower end of a tuning's proof; 0 if no plan was proved."""
    if part is None:
        return None
    return float((part["evidence"]["final"] or {}).get("low") or 0.0)


def _train(recipe: str) -> Callable[[dict[str, Any], Asked], dict[str, Any]]:
    def measure(_found: dict[str, Any], asked: Asked) -> dict[str, Any]:
        evidence = tuned(JOBS[recipe], asked.budget, without=asked.without, begun=asked.begun)
        return {"target": JOBS[recipe], "budget": asked.budget, "without": list(asked.without), "evidence": evidence}

    return measure


def _plan(found: dict[str, Any], recipe: str) -> str:
    part = found.get(f"{recipe}-train")
    if part is None:
        raise SystemExit(f"{recipe} has no plan yet: measure {recipe}-train first")
    return str(part["evidence"]["plan_toml"])


def _valid(found: dict[str, Any], _asked: Asked) -> dict[str, Any]:
    weights = weights_of(JOBS["ocr"])
    if not weights.exists():
        raise SystemExit(f"{weights} is missing; ocr-valid needs the trained network: measure ocr-learn first")
    return run_passes(JOBS["ocr"], Plan.from_toml(_plan(found, "ocr"), catalogue()), weights)


def _maps(_found: dict[str, Any], _asked: Asked) -> dict[str, Any]:
    measured = run_maps()
    return {**measured, "doctr": run_doctr(ROUNDS)}


def _rivals(recipe: str) -> Callable[[dict[str, Any], Asked], dict[str, Any]]:
    def measure(found: dict[str, Any], _asked: Asked) -> dict[str, Any]:
        plan = Plan.from_toml(_plan(found, recipe), catalogue()).to_dict()
        return side_by_side(f"{ROOT / JOBS[recipe]}", plan, ARMS)

    return measure


def _learn(recipe: str) -> Callable[[dict[str, Any], Asked], dict[str, Any]]:
    return lambda found, _asked: run_learning(JOBS[recipe], _plan(found, recipe), METRICS[recipe])


PARTS: dict[str, Callable[[dict[str, Any], Asked], dict[str, Any]]] = {
    "detection-train": _train("detection"),
    "ocr-train": _train("ocr"),
    "maps": _maps,
    "detection-rivals": _rivals("detection"),
    "ocr-rivals": _rivals("ocr"),
    "detection-learn": _learn("detection"),
    "ocr-learn": _learn("ocr"),
    "ocr-valid": _valid,
}


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=list(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--budget", default=BUDGET, help="budget of each tuning")
    parser.add_argument("--without", default=",".join(WITHOUT), help="techniques to exclude, separated by commas")
    parser.add_argument("--begun", type=Path, help="folder of an interrupted tuning to resume")
    parser.add_argument("--again", action="store_true", help="repeat existing parts")
    given = parser.parse_args(arguments)
    without = tuple(name for name in given.without.split(",") if name)
    asked = Asked(budget=given.budget, without=without, begun=given.begun)
    print(f"wrote {run(given.part, asked, again=given.again)}", flush=True)
